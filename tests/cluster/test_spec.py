"""Which cluster a process is in: TF_CONFIG and Slurm's variables, read or explained."""

import json
import random

import tensorflow as tf
from tensorflow.python.distribute import multi_worker_util

from distlab.cluster.group import OPEN_SERVERS
from distlab.cluster.spec import ClusterSpec, Layout, TaskName, count_tasks, read_cluster
from distlab.diagnostics import explain_cluster, warn_of_cluster
from distlab.errors import DistlabError

WORKERS = {"worker": ["host1:2222", "host2:2222"]}
SERVERS = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
FIRST = {"type": "worker", "index": 0}
EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, ' + (
    '"task": {"type": "worker", "index": 0}}'
)


def text(cluster, task=FIRST, **others):
    return json.dumps({"cluster": cluster, "task": task, **others})


def read(value):
    return read_cluster({"TF_CONFIG": value})


def unexplained(cases, asked):
    """The cases (environment, found, do) whose error does not say what it should."""
    wrong = []
    for environ, found, do in cases:
        try:
            outcome = read_cluster(environ)
        except DistlabError as error:
            outcome = (error.asked[:150], error.found, error.do)
            said = error.asked.startswith(asked(environ)) and found in error.found
            if said and do in error.do and len(error.found) < 600:
                continue
        wrong.append((str(environ)[:200], found, do, outcome))
    return wrong


def test_a_cluster_is_read_as_it_was_written_and_written_as_it_is_read():
    spec = read(text(SERVERS, {"type": "ps", "index": 0}))
    assert spec.task == TaskName("ps", 0) and spec.source == "TF_CONFIG"
    assert list(map(str, spec.tasks_in_order())) == ["chief:0", "worker:0", "worker:1", "ps:0"]
    assert [spec.address_of(task) for task in spec.tasks_in_order()] == ["a:1", "b:1", "c:1", "d:1"]
    assert (spec.tasks, spec.leader, spec.has_parameter_servers) == (4, TaskName("chief", 0), True)
    layout = Layout(workers=2, parameter_servers=1, chief=True, evaluator=True)
    built = layout.on(range(4, 8))
    for task in built.tasks_in_order():
        again = read(built.tf_config(task))
        assert (again.addresses, again.task) == (built.addresses, task)
    assert count_tasks(spec.jobs) == "1 chief, 2 workers, 1 parameter server"
    assert ClusterSpec(jobs={"worker": 1}, addresses={}, source="here").strategy is None


def test_what_vendors_and_tensorflow_write_is_no_mistake():
    # As Kubeflow's TFJob, Vertex AI and SageMaker write it.
    config = text(WORKERS, {"type": "worker", "index": "1"}, environment="cloud", rpc_layer="grpc")
    assert read(config).task == TaskName("worker", 1)
    empty = ['{"cluster": {}, "task": {"type": "chief", "index": 0}}', '{"environment": "x"}', " "]
    assert [read(value) for value in empty] == [None] * 3 and read_cluster({}) is None
    outside = read(json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}}))
    assert outside.task is None and outside.strategy == "parameter_server" and not outside.serves
    for address in ("h1:1", "10.0.0.1:65535", "[::1]:2222", "a_b-c.svc.local.:1"):
        assert read(text({"worker": [address]})).addresses == {"worker": (address,)}


SET_IT = f"set it as in {EXAMPLE}, or unset it"
NO_DESCRIPTION = [
    ("{", "no JSON at its end (Expecting property name enclosed in double quotes)", SET_IT),
    ('{"cluster": {"worker": ["a:1" "b:1"]}}', """no JSON at character 31, '"b:1"]}}'""", SET_IT),
    ("[1]", "it is [1], no object", SET_IT),
    (json.dumps(EXAMPLE), "was json.dumps called twice?", SET_IT),
    ("[" * 100_000, "it does not describe a cluster", SET_IT),
    (text(1), "'cluster' is 1, no object of jobs", SET_IT),
    (text(WORKERS, task=3), "'task' is 3, no object with 'type' and 'index'", SET_IT),
    (json.dumps({"task": FIRST}), "a 'task' and no 'cluster': each would train alone", SET_IT),
    (text({"worker": "a:1"}), "'worker' is 'a:1', no list of addresses", SET_IT),
    (text({"worker": {"0": "a:1"}}), "'worker' is {'0': 'a:1'}, no list of addresses", SET_IT),
    ("{'cluster': {'worker': ['a:1']}}", "no JSON at", "write \" for ', or let Python write it"),
]

# The cluster, the task, what is found, what to do.
NO_CHIEF = {"worker": ["a:1"], "ps": ["b:1"]}
MISTAKES = [
    ({"workr": ["a:1"]}, FIRST, "'workr' is no job", "did you mean 'worker'? Or choose one of"),
    ({"worker": []}, FIRST, "'worker' has no task", "give its addresses, or take 'worker' out"),
    (WORKERS | {"evaluator": ["e:1"]}, FIRST, "'evaluator' is in the cluster", "take it out of"),
    ({"chief": ["a:1", "b:1"]}, FIRST, "there are 2 chiefs", "keep one, and make the others"),
    (NO_CHIEF, FIRST, "no chief: every task would wait", '"chief": ["host:port"]'),
    ({"chief": ["a:1"], "ps": ["b:1"]}, FIRST, "and no worker", "add 'worker'"),
    ({"worker": ["a:1", ""]}, FIRST, "worker:1: the address '' is empty", "write host:port"),
    (WORKERS, {}, "cannot know which of the 2 tasks it is", 'add "task": {"type": "worker", "in'),
    (WORKERS, {"index": 0}, "'task' has no 'type'", 'add "task"'),
    (WORKERS, {"type": "worker"}, "'task' has no 'index'", 'add "task"'),
    (WORKERS, {"type": "worker", "index": 1.5}, "has the index 1.5", "a whole number"),
    (WORKERS, {"type": "worker", "index": True}, "has the index True", "a whole number"),
    (WORKERS, {"type": "worker", "index": 2}, "is worker:2, and 'worker' has the", "from 0"),
    (WORKERS, {"type": "worker", "index": -1}, "this task is worker:-1", "from 0"),
    (WORKERS, {"type": "worker", "index": 10**4000}, "000, and 'worker' has", "from 0"),
    (WORKERS, {"type": "ps", "index": 0}, "the cluster has only 'worker'", "add 'ps' to 'cluster'"),
    ({"worker": ["h:1", "h:1"]}, FIRST, "worker:1 at h:1 have the same address", "its own; tasks"),
    ({"chief": ["H.:1"], "worker": ["h:01"]}, FIRST, "have the same address", "its own"),
    ({"worker": ["localhost:1", "127.0.0.1:1"]}, FIRST, "have the same address", "its own"),
    ({"worker": ["localhost:1", "h:1"]}, FIRST, "means another machine on each", "the name or the"),
    ({"worker": ["h:1", "[::1]:1"]}, FIRST, "worker:1 is at [::1]:1, which", "every task"),
]

ADDRESSES = [
    ("grpc://h1:1", "has more than a host and a port", "write host:port"),
    ("h1", "has no port", "write host:port, as 'host1:2222'"),
    ("h1:http", "has the port 'http'", "give a port of 1 to 65535 that is free"),
    ("h1:0", "has the port '0'", "give a port"),
    ("h1:65536", "has the port '65536'", "give a port"),
    ("h1:" + "9" * 5000, "has the port '9999", "give a port"),
    ("h1:\uff11", "has the port", "give a port"),
    ("::1:2222", "has several colons", "an IPv6 address in brackets, as '[::1]:2222'"),
    ("10.0.0.300:1", "has no host: '10.0.0.300'", "the name or the IP address"),
    (" h1:1", "has more than a host and a port", "write host:port"),
    ("user@h1:1", "has the host 'user@h1'", "letters, digits, dots and dashes"),
    ("b\u00fccher:1", "has the host 'b\u00fccher'", "letters, digits"),
    ("-a:1", "has the host '-a'", "letters, digits"),
]


def test_every_mistake_of_a_tf_config_is_named_with_its_cure():
    values = [
        *NO_DESCRIPTION,
        *((text(cluster, task), found, do) for cluster, task, found, do in MISTAKES),
        *((text({"worker": ["good:1", address]}), found, do) for address, found, do in ADDRESSES),
    ]
    cases = [({"TF_CONFIG": value}, found, do) for value, found, do in values]
    assert unexplained(cases, lambda env: f"TF_CONFIG={env['TF_CONFIG'][:80]!r}") == []


def test_a_thousand_malformed_descriptions_are_read_or_explained():
    draw, read_well = random.Random(4), 0
    for _ in range(1000):
        value = text(draw.choice([WORKERS, SERVERS]))
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(value) + 1)
            value = value[:at] + draw.choice('{}[]",:\\0\ud800a ') + value[at + draw.randrange(9) :]
        try:
            spec = read(value)
        except DistlabError as error:
            assert error.asked and error.found and error.do, value
            assert max(map(len, (error.asked, error.found))) < 600, value
            assert str(error).encode()  # can be printed, whatever was in the value
            continue
        if spec is not None and spec.task is not None:  # TensorFlow takes it too
            cluster = tf.train.ClusterSpec(json.loads(value)["cluster"])
            multi_worker_util._validate_cluster_spec(cluster, spec.task.job, spec.task.index)
            read_well += 1
    assert 100 < read_well < 700


def slurm(tasks, nodes, per_node, *, rank=0, **others):
    """Returns what srun sets for a task of a step, as its manual lists it."""
    return {
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_PROCID": str(rank),
        **{f"SLURM_{name}": value for name, value in others.items()},
    }


def test_slurms_nodes_keep_their_order_and_its_ports_are_taken():
    def addresses(*given, **others):
        return read_cluster(slurm(*given, **others)).addresses["worker"]

    # TensorFlow's resolver sorts the nodes; ranks do not.
    assert addresses(3, "n[08-09],big", "1(x3)") == ("n08:8888", "n09:8888", "big:8888")
    assert addresses(4, "r[1-2]n[8-9]", "1(x4)")[1:3] == ("r1n9:8888", "r2n8:8888")
    reserved = addresses(2, "localhost", "2", STEP_RESV_PORTS="12000-12003")
    assert reserved == ("localhost:12000", "localhost:12001")
    # Jobs and steps that share nodes have ports of their own, also with the numbers of federations.
    jobs = [(str(4_000_000_000 + job), str(step)) for job in range(40) for step in range(3)]
    ports = {
        address.rpartition(":")[2]
        for job, step in jobs
        for address in addresses(8, "node[1-2]", "4(x2)", JOB_ID=job, STEP_ID=step)
    }
    assert len(ports) == 40 * 3 * 4 and min(ports) >= "10000" and max(ports) < "30000"
    spec = read_cluster(slurm(5, "n[1-2],m", "2(x2),1", rank=4, NODEID="2", LOCALID="0"))
    assert spec.task == TaskName("worker", 4) and spec.address_of(spec.task) == "m:8888"
    assert spec.source == "Slurm" and spec.strategy == "multi_worker"
    alone = [{"SLURM_JOB_ID": "7"}, slurm(1, "node1", "1"), {"SLURM_STEP_NUM_TASKS": "\u0662"}]
    assert list(map(read_cluster, alone)) == [None] * 3


def test_a_step_that_slurm_does_not_describe_is_explained():
    in_turn = slurm(4, "n[1-2]", "2(x2)", rank=1, NODEID="1", LOCALID="0")
    cases = [
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NODELIST is not set", "the tasks with srun"),
        (slurm(3, "n[1-2]", "1(x2)"), "3 tasks, 2 nodes, and [1, 1] tasks on them", "srun"),
        (slurm(2, "n[1-x]", "1(x2)"), "'1-x' in 'n[1-x]'", "leave srun's variables"),
        (slurm(2, "n[1-2]", "1(x2)", rank=2), "SLURM_PROCID=2 of 2 tasks", "leave srun's"),
        (slurm(2, "n1", "2", JOB_ID="x"), "SLURM_JOB_ID='x' is no number", ""),
        (in_turn, "counting node by node it is number 1 on node 0", "srun --distribution=block"),
        (slurm(2, "n1", "2", STEP_RESV_PORTS="12000"), "and 2 tasks on a node", "--resv-ports=2"),
    ]
    assert unexplained(cases, lambda _: "the cluster of Slurm, SLURM_STEP_NUM_TASKS=") == []


def local(job, index, **others):
    jobs = {"worker": ["127.0.0.1:1", "127.0.0.1:2"], **others}
    return {"TF_CONFIG": text(jobs, {"type": job, "index": index})}


def test_an_explanation_says_who_this_is_and_what_will_happen():
    spec = read_cluster(local("worker", 1))
    assert explain_cluster(spec) == {
        "cluster": "2 workers (TF_CONFIG)",
        "task": "worker:1 at 127.0.0.1:2",
        "chief": "worker:0, which acts as one",
        "others": "worker:0 at 127.0.0.1:1",
        "strategy": "multi_worker",
        "expect": "All 2 workers make their strategy before any goes on. Every step waits for the "
        "slowest worker; when one ends, the others get an error. worker:0 saves for all.",
    }
    assert warn_of_cluster(spec) == (f"{OPEN_SERVERS} Use a network that you trust.",)
    elsewhere = ["192.0.2.7:2222", "192.0.2.8:2222"]  # kept free for examples
    assert warn_of_cluster(read(text({"worker": elsewhere})))[1:] == (
        "192.0.2.7:2222 is no address of this machine: is this the TF_CONFIG of another task?",
    )


def test_a_server_a_coordinator_and_an_evaluator_learn_what_they_do():
    servers = {"chief": ["127.0.0.1:3"], "ps": ["127.0.0.1:4"]}
    cases = [
        (local("chief", 0, **servers), "It waits until all workers and parameter servers answer."),
        (local("ps", 0, **servers), "chief:0 tells it what to do; your code ends at make_strategy"),
        (local("evaluator", 0), "It evaluates the checkpoints that worker:0 writes"),
    ]
    for environ, expect in cases:
        assert expect in explain_cluster(read_cluster(environ))["expect"]
