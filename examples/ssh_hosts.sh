#!/bin/bash
# Starts a training script on several hosts by SSH, one worker on each:
#
#     examples/ssh_hosts.sh 10.0.0.1 10.0.0.2 -- examples/train.py --folder /shared/checkpoints
#
# Start it in the project's folder, which must have the same path on every host. The environment
# variable PYTHON names the interpreter there (python), and PORT the port of the workers (2222),
# which must be open between the hosts. The exit code is that of the first worker that failed.

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
ssh_of=()
# With -tt, a worker ends when its SSH connection does.
trap 'kill "${ssh_of[@]}" 2>/dev/null' INT TERM
for index in "${!hosts[@]}"; do
    task="{\"type\": \"worker\", \"index\": $index}"
    config="{\"cluster\": {\"worker\": [${workers%, }]}, \"task\": $task}"
    command="cd $(printf %q "$PWD") && TF_CONFIG=$(printf %q "$config") exec"
    ssh -tt -o BatchMode=yes "${hosts[$index]}" "$command $(printf '%q ' "$python" -u "$@")" \
        </dev/null > >(sed -u "s/^/[worker:$index] /") 2>&1 &
    ssh_of+=($!)
done

code=0
for process in "${ssh_of[@]}"; do
    wait "$process"
    ended=$?
    if [ $code -eq 0 ]; then code=$ended; fi
done
exit $code
