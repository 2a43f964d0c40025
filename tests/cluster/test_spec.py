import json
import random
import string

import pytest
import tensorflow as tf
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import (
    SlurmClusterResolver,
)

from distlab.cluster.cluster_explanation import OPEN_SERVERS, explain_cluster
from distlab.cluster.spec import ClusterSpec, TaskName, count_tasks, local_spec, read_cluster
from distlab.errors import DistlabError, UnsupportedEnvironment

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


def mistake(value):
    """Returns what was found and what to do; the value itself must be in the error."""
    with pytest.raises(UnsupportedEnvironment) as error:
        read(value)
    assert error.value.asked.startswith(f"TF_CONFIG={value[:80]!r}")
    return error.value.found, error.value.do


def test_a_cluster_is_read_as_it_was_written():
    spec = read(text(SERVERS, {"type": "ps", "index": 0}))
    assert spec.task == TaskName("ps", 0) and spec.source == "TF_CONFIG"
    assert list(map(str, spec.tasks_in_order())) == ["chief:0", "worker:0", "worker:1", "ps:0"]
    assert [spec.address_of(task) for task in spec.tasks_in_order()] == ["a:1", "b:1", "c:1", "d:1"]
    assert (spec.tasks, spec.leader, spec.has_parameter_servers) == (4, TaskName("chief", 0), True)
    assert read(spec.tf_config(TaskName("worker", 1))).task == TaskName("worker", 1)


def test_a_local_cluster_and_what_its_tasks_read_are_the_same():
    built = local_spec(
        workers=2, parameter_servers=1, chief=True, evaluator=True, ports=range(4, 8)
    )
    for task in built.tasks_in_order():
        told = read(built.tf_config(task))
        assert (told.addresses, told.task) == (built.addresses, task)


def test_what_vendors_add_is_no_mistake():
    # As Kubeflow's TFJob, Vertex AI and SageMaker write it.
    config = text(WORKERS, {"type": "worker", "index": "1"}, environment="cloud", rpc_layer="grpc")
    assert read(config).task == TaskName("worker", 1)
    assert read('{"cluster": {}, "task": {"type": "chief", "index": 0}}') is None
    assert read('{"environment": "cloud"}') is None
    assert read(" ") is None and read_cluster({}) is None


def test_a_job_may_be_a_mapping_of_indices_as_tensorflow_takes_it():
    assert read(text({"worker": {"0": "a:1", "1": "b:1"}})).addresses == {"worker": ("a:1", "b:1")}
    sparse = {"worker": {"1": "b:1"}, "ps": ["c:1"]}
    spec = read(text(sparse, {"type": "worker", "index": 1}))
    assert spec.address_of(TaskName("worker", 0)) is None
    assert json.loads(spec.tf_config(TaskName("worker", 1)))["cluster"] == sparse


def test_a_coordinator_may_stand_outside_of_its_cluster():
    spec = read(json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}}))
    assert spec.task is None and spec.strategy == "parameter_server" and not spec.serves


NO_CLUSTER = "it does not describe a cluster: "


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("{", "no JSON at its end (Expecting property name enclosed in double quotes)"),
        (
            '{"cluster": {"worker": ["a:1" "b:1"]}}',
            """no JSON at character 31, '"b:1"]}}' (Expecting ',' delimiter)""",
        ),
        ("[1]", "it is a list ([1]), no object"),
        ("5", "it is a number (5), no object"),
        ("null", "it is null (None), no object"),
        (json.dumps(EXAMPLE), "was json.dumps called twice?"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"cluster": {"worker": [' + "1" * 5000 + "]}}", "Exceeds the limit (4300 digits)"),
        (
            '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}, "task": {}}',
            "'worker' is there twice",
        ),
        (text(1), "'cluster' is a number (1), no object of jobs"),
        (text(WORKERS, task=3), "'task' is a number (3), no object with 'type' and 'index'"),
        (json.dumps({"task": FIRST}), "there is a 'task' and no 'cluster': each would train alone"),
        (json.dumps({"Cluster": WORKERS, "task": FIRST}), "it has 'Cluster' and no 'cluster'"),
        (json.dumps({"cluster": WORKERS, "tasks": FIRST}), "it has 'tasks' and no 'task'"),
        (text({"worker": "a:1"}), "'worker' is a string ('a:1'), no list of addresses"),
        (text({"worker": ["a:1", 2]}), "the address of worker:1 is a number (2), no string"),
        (text({"worker": ["a:1", ""]}), "worker:1 has an empty address"),
        (text({"worker": {"0": "a:1", "00": "b:1"}}), "an index of 'worker' is there twice"),
        (text({"worker": {"123456789": "a:1"}}), "the indices of 'worker' are not 0, 1, 2, ..."),
        (text(WORKERS, {"type": 3, "index": 0}), "the task's 'type' is a number (3), no string"),
    ],
)
def test_what_is_no_description_is_shown_at_its_place_beside_one_that_is(value, found):
    seen, do = mistake(value)
    assert seen.startswith(NO_CLUSTER) and found in seen
    assert do == f"set it as in {EXAMPLE}, or unset it"


@pytest.mark.parametrize(
    ("value", "do"),
    [
        ("{'cluster': {'worker': ['a:1']}}", "write \" for ', or let Python write it"),
        (f"'{EXAMPLE}'", "take away the quotes around it"),
    ],
)
def test_quotes_that_are_not_jsons_have_their_own_advice(value, do):
    found, advice = mistake(value)
    assert found.startswith(NO_CLUSTER + "no JSON at character") and advice.startswith(do)


@pytest.mark.parametrize(
    ("cluster", "task", "found", "do"),
    [
        ({"master": ["a:1"]}, FIRST, "'master' is no job of a cluster", "call it 'chief'"),
        ({"Worker": ["a:1"]}, FIRST, "'Worker' is no job of a cluster", "call it 'worker'"),
        ({"parameter_server": ["a:1"]}, FIRST, "no job of a cluster", "call it 'ps'"),
        ({"server": ["a:1"]}, FIRST, "no job of a cluster", "call it 'ps'"),
        ({"workr": ["a:1"]}, FIRST, "'workr' is no job", "did you mean 'worker'? Or choose one of"),
        (WORKERS, {"type": "master", "index": 0}, "'master' is no job", "call it 'chief'"),
        ({"worker": []}, FIRST, "'worker' has no task", "give its addresses, or take 'worker' out"),
        ({"worker": {}}, FIRST, "'worker' has no task", "give its addresses"),
        (
            {**WORKERS, "evaluator": ["e:1"]},
            FIRST,
            "'evaluator' is in the cluster; it evaluates checkpoints and meets no other task",
            "take it out of 'cluster', and keep it as the 'task' of the process that evaluates",
        ),
        ({"chief": ["a:1", "b:1"]}, FIRST, "there are 2 chiefs", "keep one, and make the others"),
        (
            {"worker": ["a:1"], "ps": ["b:1"]},
            FIRST,
            "there are parameter servers and no chief: every task would wait",
            'add the process that coordinates, "chief": ["host:port"]',
        ),
        ({"chief": ["a:1"], "ps": ["b:1"]}, FIRST, "and no worker", "add 'worker'"),
        ({"worker": {"1": "a:1"}}, FIRST, "some indices are left out", "every task, from index 0"),
        (
            {"worker": {"1": "a:1"}, "ps": ["b:1"]},
            FIRST,
            "this task is worker:0, and the cluster does not say its address",
            "add it",
        ),
        (
            WORKERS,
            {},
            "there is no 'task': this process cannot know which of the 2 tasks it is",
            'add "task": {"type": "worker", "index": 0}, in each process its own',
        ),
        (WORKERS, {"index": 0}, "'task' has no 'type'", 'add "task"'),
        (WORKERS, {"type": "worker"}, "'task' has no 'index'", 'add "task"'),
        (
            WORKERS,
            {"type": "worker", "index": 1.5},
            "this task has the index 1.5",
            "a whole number",
        ),
        (
            WORKERS,
            {"type": "worker", "index": True},
            "this task has the index True",
            "whole number",
        ),
        (
            WORKERS,
            {"type": "worker", "index": "x"},
            "this task has the index 'x'",
            "a whole number",
        ),
        ({"worker": {"x": "a:1"}}, FIRST, "a task of 'worker' has the index 'x'", "a whole number"),
        (
            WORKERS,
            {"type": "worker", "index": 2},
            "this task is worker:2, and 'worker' has the indices 0 to 1",
            "count the tasks of a job from 0",
        ),
        (WORKERS, {"type": "worker", "index": -1}, "this task is worker:-1", "from 0"),
        (WORKERS, {"type": "worker", "index": 10**4000}, "000, and 'worker' has", "from 0"),
        (WORKERS, {"type": "evaluator", "index": 1}, "has the indices 0 only", "from 0"),
        (
            WORKERS,
            {"type": "ps", "index": 0},
            "this task is of 'ps', and the cluster has only 'worker'",
            "add 'ps' to 'cluster' on every task, or change 'type'",
        ),
        (
            {"worker": ["h:1", "h:1"]},
            FIRST,
            "worker:0 at h:1 and worker:1 at h:1 have the same address",
            "give each task its own; tasks on one machine differ by their ports",
        ),
        (
            {"chief": ["H.:1"], "worker": ["h:01"]},
            FIRST,
            "chief:0 at H.:1 and worker:0 at h:01 have the same address",
            "give each task its own",
        ),
        (
            {"worker": ["localhost:1", "127.0.0.1:1"]},
            FIRST,
            "worker:0 at localhost:1 and worker:1 at 127.0.0.1:1 have the same address",
            "give each task its own",
        ),
        (
            {"worker": ["localhost:1", "h:1"]},
            FIRST,
            "worker:0 is at localhost:1, which means another machine on each, and worker:1 is at",
            "the name or the IP address by which the other machines reach it",
        ),
        ({"worker": ["h:1", "0.0.0.0:1"]}, FIRST, "worker:1 is at 0.0.0.0:1, which", "every task"),
        ({"worker": ["h:1", "[::1]:1"]}, FIRST, "worker:1 is at [::1]:1, which", "every task"),
    ],
)
def test_every_classic_mistake_is_named_with_its_cure(cluster, task, found, do):
    seen, advice = mistake(text(cluster, task))
    assert found in seen and do in advice


@pytest.mark.parametrize(
    ("address", "found", "do"),
    [
        ("grpc://h1:1", "has a scheme", "write 'h1:1'"),
        ("http://h1:80/x", "has a scheme", "write 'h1:80'"),
        ("http://h1", "has a scheme", "write host:port, as 'host1:2222'"),
        ("h1:1/worker", "has a path", "write 'h1:1'"),
        ("h1", "has no port", "write host:port, as 'host1:2222'"),
        ("[::1]", "has no port", "write host:port"),
        ("h1:", "has the port ''", "give a port of 1 to 65535 that is free"),
        ("h1:http", "has the port 'http'", "give a port"),
        ("h1:0", "has the port '0'", "give a port"),
        ("h1:65536", "has the port '65536'", "give a port"),
        ("h1:" + "9" * 5000, "has the port '9999", "give a port"),
        ("h1:\uff11", "has the port", "give a port"),
        ("::1:2222", "has several colons", "an IPv6 address in brackets, as '[::1]:2222'"),
        ("[zz]:1", "has no host: 'zz'", "letters, digits, dots and dashes"),
        ("10.0.0.300:1", "has no host: '10.0.0.300'", "the name or the IP address"),
        (" h1:1", "has a space in it", "write 'h1:1'"),
        ("h 1:1", "has a space in it", "write host:port"),
        (" ", "is empty", "write host:port"),
        ("user@h1:1", "has the host 'user@h1'", "letters, digits, dots and dashes"),
        ("b\u00fccher:1", "has the host 'b\u00fccher'", "letters, digits"),
        (":1", "has the host ''", "letters, digits"),
        ("-a:1", "has the host '-a'", "letters, digits"),
        ("a" * 300 + ":1", "has the host", "letters, digits"),
    ],
)
def test_an_address_is_a_host_and_a_port_and_no_more(address, found, do):
    seen, advice = mistake(text({"worker": ["good:1", address]}))
    assert seen.startswith("worker:1: the address ") and found in seen and do in advice
    assert len(seen) < 250


@pytest.mark.parametrize("address", ["h1:1", "10.0.0.1:65535", "[::1]:2222", "a_b-c.svc.local.:1"])
def test_addresses_that_tensorflow_takes_are_taken(address):
    assert read(text({"worker": [address]})).addresses == {"worker": (address,)}


def test_what_tensorflow_would_not_read_is_said():
    sparse = json.dumps({"sparseCluster": WORKERS, "task": FIRST})
    found, do = mistake(sparse)
    assert found.startswith("it has 'sparseCluster', which TensorFlow does not read")
    assert do == "set enableDynamicWorker: false in the TFJob"
    found, do = mistake(text(WORKERS, rpc_layer="grpc+verbs"))
    assert (found, do) == ("'rpc_layer' is 'grpc+verbs'", "take it out: TensorFlow speaks 'grpc'")


def garbage(draw):
    return draw.choice(
        [
            *(None, True, False, 0, -1, 1, 2, 3.5, 1e308, 10**30, "", " ", "0", "1", "\u0661"),
            *("worker", "ps", "chief", "evaluator", "master", "\udc80", "\x00", "\U0001f600" * 50),
            *([], {}, [[]], [None], {"": ""}, {"0": "a:1"}, {"-1": "a:1"}, ["x:1"] * 3),
            *("localhost:1", "127.0.0.1:1", "[::1]:2", "[", "]:1", "a:b:c", "/bns/x:1", "h:1"),
            "".join(draw.choices(string.printable, k=draw.randrange(9))),
            "".join(map(chr, draw.choices(range(0x3000), k=draw.randrange(9)))),
        ]
    )


def places(value):
    """Yields every container in a value, with every key of it."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def mutated(draw):
    """Returns a TF_CONFIG with some mistakes, or with none."""
    job = draw.choice(["chief", "worker", "ps", "evaluator"])
    task = {"type": job, "index": draw.randrange(2)}
    config = json.loads(text(draw.choice([WORKERS, SERVERS, {"worker": {"0": "a:1"}}]), task))
    for _ in range(draw.randrange(4)):
        container, key = draw.choice(list(places(config)))
        action = draw.randrange(4)
        if action == 0:
            container[key] = garbage(draw)
        elif action == 1:
            del container[key]
        elif isinstance(container, dict):
            container[str(garbage(draw))] = container[key]
        else:
            container.append(garbage(draw) if action == 2 else container[key])
        if not config:
            break
    written = json.dumps(config)
    for _ in range(draw.choice([0, 0, 0, 0, 1, 3])):
        at = draw.randrange(len(written) + 1)
        rest = written[at + draw.randrange(3) :]
        written = written[:at] + draw.choice('{}[]",:\\0\ud800a ') + rest
    return written


def test_thousands_of_malformed_descriptions_are_read_or_explained():
    draw = random.Random(4)
    outcomes = {"read": 0, "none": 0, "explained": 0}
    for _ in range(5000):
        value = mutated(draw)
        try:
            spec = read(value)
        except DistlabError as error:
            assert error.asked and error.found and error.do, value
            assert max(map(len, (error.asked, error.found))) < 600, value
            assert str(error).encode()  # can be printed, whatever was in the value
            outcomes["explained"] += 1
            continue
        if spec is None:
            outcomes["none"] += 1
            continue
        outcomes["read"] += 1
        # TensorFlow takes what was read: both as it was written, and as we would write it.
        for config in (value, spec.tf_config(spec.task or TaskName("chief", 0))):
            cluster = tf.train.ClusterSpec(json.loads(config)["cluster"])
            if spec.task is not None:
                multi_worker_util._validate_cluster_spec(cluster, spec.task.job, spec.task.index)
    assert outcomes["read"] > 500 and outcomes["explained"] > 2000, outcomes


def slurm(tasks, nodes, per_node, *, rank=0, **others):
    """Returns what srun sets for a task of a step, as its manual lists it."""
    return {
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_PROCID": str(rank),
        **{f"SLURM_{name}": value for name, value in others.items()},
    }


@pytest.mark.parametrize(
    "environ",
    [
        slurm(2, "node1", "2", rank=1, NODEID="0", LOCALID="1"),
        slurm(2, "node[1-2]", "1(x2)", rank=1, NODEID="1", LOCALID="0"),
        slurm(5, "n[08-09],big", "2(x2),1", rank=4, NODEID="2", LOCALID="0"),
        slurm(4, "gpu[1,3-4],m5", "1(x4)", rank=2),
    ],
)
def test_slurms_variables_name_the_cluster_that_tensorflows_resolver_finds(environ, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    theirs = SlurmClusterResolver(gpus_per_node=8, gpus_per_task=1, auto_set_gpu=False)
    spec = read_cluster()
    if "big" in environ["SLURM_STEP_NODELIST"]:  # theirs sorts the nodes, ranks do not
        assert sorted(spec.addresses["worker"]) == sorted(theirs.cluster_spec().job_tasks("worker"))
        assert spec.address_of(TaskName("worker", 4)) == "big:8888"
    else:
        assert list(spec.addresses["worker"]) == theirs.cluster_spec().job_tasks("worker")
    assert (spec.task.job, spec.task.index) == theirs.get_task_info()
    assert spec.source == "Slurm" and spec.strategy == "multi_worker"


def test_slurms_nodes_keep_their_order_and_their_brackets_multiply():
    environ = slurm(4, "n[9-10],r[1-2]x", "1(x4)", rank=1)
    addresses = ("n9:8888", "n10:8888", "r1x:8888", "r2x:8888")
    assert read_cluster(environ).addresses["worker"] == addresses
    environ = slurm(4, "r[1-2]n[8-9]", "1(x4)")
    hosts = [one.partition(":")[0] for one in read_cluster(environ).addresses["worker"]]
    assert hosts == ["r1n8", "r1n9", "r2n8", "r2n9"]


def test_jobs_and_steps_that_share_nodes_have_ports_of_their_own():
    ports = set()
    first = 4_000_000_000  # in a federation they are that large
    for job in range(first, first + 40):
        for step in range(3):
            environ = slurm(8, "node[1-2]", "4(x2)", JOB_ID=str(job), STEP_ID=str(step))
            addresses = read_cluster(environ).addresses["worker"]
            ports |= {int(address.rpartition(":")[2]) for address in addresses}
            assert len(set(addresses)) == 8
    assert len(ports) == 40 * 3 * 4
    assert min(ports) >= 10_000 and max(ports) < 30_000


def test_a_number_of_a_job_that_is_none_is_named():
    with pytest.raises(UnsupportedEnvironment, match="SLURM_JOB_ID='x' is no number"):
        read_cluster(slurm(2, "node1", "2", JOB_ID="x"))


def test_ports_that_slurm_has_reserved_are_taken():
    environ = slurm(2, "localhost", "2", STEP_RESV_PORTS="12000-12003")
    assert read_cluster(environ).addresses["worker"] == ("localhost:12000", "localhost:12001")


def test_outside_of_a_step_and_in_a_step_of_one_there_is_no_cluster():
    assert read_cluster({"SLURM_JOB_ID": "7"}) is None
    assert read_cluster(slurm(1, "node1", "1")) is None
    assert read_cluster({"SLURM_STEP_NUM_TASKS": "\u0662"}) is None


@pytest.mark.parametrize(
    ("environ", "found", "do"),
    [
        (
            {"SLURM_STEP_NUM_TASKS": "2"},
            "SLURM_STEP_NODELIST is not set",
            "start the tasks with srun",
        ),
        (slurm(3, "n[1-2]", "1(x2)"), "3 tasks, 2 nodes, and [1, 1] tasks on them", "srun"),
        (slurm(2, "n[1-x]", "1(x2)"), "'1-x' in 'n[1-x]'", "leave srun's variables"),
        (slurm(2, "n[1-999999999]", "1(x2)"), "names too many nodes", "name fewer"),
        (slurm(2, "n[1-2]", "two"), "SLURM_STEP_TASKS_PER_NODE='two'", "leave srun's variables"),
        (slurm(2, "n[1-2]", "1(x2)", rank=2), "SLURM_PROCID=2 of 2 tasks", "leave srun's"),
        (slurm(2, "n[1-2]", "1(x2)", rank="x"), "SLURM_PROCID='x' is no number", "leave srun's"),
        (
            slurm(4, "n[1-2]", "2(x2)", rank=1, NODEID="1", LOCALID="0"),
            "task 1 runs as number 0 on node 1; counting node by node it is number 1 on node 0",
            "srun --distribution=block",
        ),
        (
            slurm(2, "n1", "2", STEP_RESV_PORTS="12000"),
            "SLURM_STEP_RESV_PORTS='12000', and 2 tasks on a node",
            "srun --resv-ports=2",
        ),
        (slurm(2, "n 1", "2"), "worker:0: the address 'n 1:8888' has a space in it", "write"),
    ],
)
def test_a_step_that_slurm_does_not_describe_is_explained(environ, found, do):
    with pytest.raises(UnsupportedEnvironment) as error:
        read_cluster(environ)
    assert error.value.asked.startswith("the cluster of Slurm, SLURM_STEP_NUM_TASKS=")
    assert found in error.value.found and do in error.value.do


def test_tasks_are_counted_in_words():
    assert (
        count_tasks({"worker": 2, "chief": 1, "ps": 1}) == "1 chief, 2 workers, 1 parameter server"
    )
    assert count_tasks({"ps": 3}) == "3 parameter servers"


def local(job, index, **others):
    jobs = {"worker": ["127.0.0.1:1", "127.0.0.1:2"], **others}
    return {"TF_CONFIG": text(jobs, {"type": job, "index": index})}


def test_an_explanation_says_who_this_is_and_what_will_happen():
    explained = explain_cluster(local("worker", 1))
    assert repr(explained).splitlines() == [
        "cluster   2 workers (TF_CONFIG)",
        "task      worker:1 at 127.0.0.1:2",
        "chief     worker:0, which acts as one",
        "others    worker:0 at 127.0.0.1:1",
        "strategy  multi_worker",
        "expect    All 2 workers make their strategy before any goes on. Every step waits for the "
        "slowest worker; when one ends, the others get an error. worker:0 saves for all.",
        f"{OPEN_SERVERS} Use a network that you trust.",
    ]
    assert "<th style='text-align:left; vertical-align:top'>chief</th>" in explained._repr_html_()


@pytest.mark.parametrize(
    ("environ", "chief", "strategy", "expect"),
    [
        (local("worker", 0), "worker:0, which acts as one, this task", "multi_worker", "This task"),
        (
            local("chief", 0, chief=["127.0.0.1:3"], ps=["127.0.0.1:4"]),
            "chief:0, this task",
            "parameter_server",
            "It waits until all workers and parameter servers answer.",
        ),
        (
            local("ps", 0, chief=["127.0.0.1:3"], ps=["127.0.0.1:4"]),
            "chief:0",
            "none: it serves until it gets SIGTERM",
            "chief:0 tells it what to do; your code ends at make_strategy.",
        ),
        (
            local("evaluator", 0, chief=["127.0.0.1:3"]),
            "chief:0",
            "one_device",
            "It evaluates the checkpoints that chief:0 writes, and waits for nobody.",
        ),
        (
            {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}})},
            "this process",
            "parameter_server",
            "It makes the model",
        ),
        ({"TF_CONFIG": text({"worker": ["127.0.0.1:1"]})}, "worker:0", "by the devices", ""),
        ({}, "", "by the devices of this machine", ""),
    ],
)
def test_each_task_is_explained_from_where_it_stands(environ, chief, strategy, expect):
    explained = explain_cluster(environ)
    assert chief in explained.chief and strategy in explained.strategy
    assert expect in " ".join(explained.expect)


def test_a_task_that_belongs_on_another_machine_is_doubted():
    addresses = ["192.0.2.7:2222", "192.0.2.8:2222"]  # kept free for examples
    explained = explain_cluster({"TF_CONFIG": text({"worker": addresses})})
    assert explained.notes[1:] == (
        "192.0.2.7:2222 is no address of this machine: is this the TF_CONFIG of another task?",
    )


def test_a_spec_without_tasks_of_its_own_has_no_strategy():
    assert ClusterSpec(jobs={"worker": 1}, addresses={}, source="here").strategy is None
