#!/bin/bash
# Starts a training script on several hosts by SSH, one worker on each:
#
#     examples/ssh_hosts.sh 10.0.0.1 10.0.0.2 -- examples/train.py --folder /shared/checkpoints
#
# Start it in the project's folder, which must have the same path on every host. These environment
# variables change what it does:
#
#     PYTHON       the interpreter on the hosts (python)
#     PORT         the port of the workers, which must be open between the hosts (2222)
#     ENVIRONMENT  names of further variables that the workers get, such as "NCCL_DEBUG"
#
# It waits until all workers have ended. The exit code is that of the first host in the list whose
# worker failed.

set -u
port=${PORT:-2222} python=${PYTHON:-python}

hosts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    hosts+=("$1")
    shift
done
if [ ${#hosts[@]} -eq 0 ] || [ $# -lt 2 ]; then
    echo "usage: $0 HOST [HOST...] -- SCRIPT [ARGUMENT...]" >&2
    exit 2
fi
shift

workers=$(printf "\"%s:$port\", " "${hosts[@]}")
variables=
for name in ${ENVIRONMENT:-}; do
    variables+="$name=$(printf %q "${!name}") "
done

# With -tt, a worker ends when its SSH connection does. The keep-alive notices a lost one.
options=(-tt -o BatchMode=yes -o ServerAliveInterval=30 -o ServerAliveCountMax=4)
ssh_of=()
trap 'kill "${ssh_of[@]}" 2>/dev/null' INT TERM
for index in "${!hosts[@]}"; do
    task="{\"type\": \"worker\", \"index\": $index}"
    config="{\"cluster\": {\"worker\": [${workers%, }]}, \"task\": $task}"
    command="cd $(printf %q "$PWD") && ${variables}TF_CONFIG=$(printf %q "$config") exec"
    ssh "${options[@]}" "${hosts[$index]}" "$command $(printf '%q ' "$python" -u "$@")" \
        </dev/null > >(sed -u "s/\r$//; s/^/[worker:$index] /") 2>&1 &
    ssh_of+=($!)
done

code=0
for process in "${ssh_of[@]}"; do
    wait "$process"
    ended=$?
    if [ $code -eq 0 ]; then code=$ended; fi
done
wait  # for the last lines
exit $code
