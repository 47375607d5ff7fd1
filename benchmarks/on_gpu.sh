#!/usr/bin/env bash
# Everything that needs CUDA and NCCL, in one run of at most nine minutes on one GPU, torch 2.11 or newer:
#   benchmarks/on_gpu.sh [FOLDER]      PYTHON=... names the interpreter; FOLDER (or $OUT) keeps what each part said
# Exit code 0: every part passed, or there is no GPU and that is said; 1: a part failed; its words are shown.
set -u
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python}
out=${1:-${OUT:-$(mktemp -d)}}
mkdir -p "$out" || exit 2
until_second=$((SECONDS + 540))
failed=0

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then
    echo "skipped: torch sees no CUDA device here, so nothing of CUDA or NCCL was run"
    exit 0
fi
"$python" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda, "on", torch.cuda.get_device_name(0))'

part() { # NAME LIMIT_SECONDS COMMAND...
    local name=$1 limit=$2 began=$SECONDS code
    shift 2
    local left=$((until_second - SECONDS))
    if [ "$left" -le 5 ]; then
        echo "$name: not run, the nine minutes are over"
        failed=1
        return
    fi
    timeout --kill-after=5 $((limit < left ? limit : left)) "$@" > "$out/$name.txt" 2>&1
    code=$?
    echo "== $name: $([ $code -eq 0 ] && echo passed || echo "FAILED, exit code $code") in $((SECONDS - began)) s"
    tail -n $([ $code -eq 0 ] && echo 6 || echo 40) "$out/$name.txt" | sed 's/^/   /'
    [ $code -eq 0 ] || failed=1
}

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
part tests 110 "$python" -m pytest -q -n0 -m gpu tests/checks tests/workloads tests/probe
part step-cost 100 "$python" benchmarks/on_gpu.py step-cost
part no-synchronisation 60 "$python" benchmarks/on_gpu.py no-synchronisation
part memory-tables 45 "$python" benchmarks/on_gpu.py memory-tables
part out-of-memory 45 "$python" benchmarks/on_gpu.py out-of-memory
part stuck-in-kernel 90 "$python" benchmarks/on_gpu.py stuck-in-kernel
part nccl-dumps 45 "$python" benchmarks/on_gpu.py nccl-dumps
part prediction 90 "$python" benchmarks/on_gpu.py prediction
echo "$SECONDS s; what each part said is in $out"
exit $failed
