#!/usr/bin/env bash
# The floor: the same cluster by a plain script, as lean, gated and polling as such a script can be.
# floor.sh up|down, on the lab; images and model are present. Prints a line when the GPUs are verified.
set -euo pipefail
cd "$(dirname "$0")/.."

head=192.168.200.12 worker=192.168.200.13 image=dgx-spark-lab/vllm:1
ssh=(ssh -F .build/lab/ssh_config -o BatchMode=yes -o ControlMaster=auto -o ControlPersist=60
  -o ControlPath="$HOME/.cache/dgx-spark/floor-%C")
mkdir -p "$HOME/.cache/dgx-spark"

on_head() { "${ssh[@]}" -T aurora@10.1.230.180 "$@"; }
on_worker() { "${ssh[@]}" -T -J aurora@10.1.230.180 aurora@$worker "$@"; }

run() { # NAME ADDRESS COMMAND… : the docker command of one container
  local name=$1 address=$2
  shift 2
  echo docker run -d --name "floor-$name" --network host --ipc host --gpus all --restart unless-stopped \
    -e RAY_ADDRESS=$head:6379 -e VLLM_HOST_IP="$address" -e VLLM_RPC_BASE_PATH=/tmp/ray -e VLLM_NO_USAGE_STATS=1 \
    -e HF_HUB_OFFLINE=1 -e RAY_num_prestart_python_workers=0 -e RAY_memory_monitor_refresh_ms=0 \
    -e GLOO_SOCKET_IFNAME=enp1s0f1np1 -e TP_SOCKET_IFNAME=enp1s0f1np1 -e VLLM_CPU_KVCACHE_SPACE=1 \
    -e TORCHINDUCTOR_CACHE_DIR=/root/.cache/inductor -e VLLM_CACHE_ROOT=/root/.cache/vllm \
    -v floor-ray:/tmp/ray -v /opt/venv:/opt/venv:ro -v /opt/models:/opt/models:ro -v /opt/cache:/root/.cache \
    --entrypoint "$1" $image "${@:2}"
}

since() { bc <<<"$EPOCHREALTIME - $began"; }

up() {
  local began=$EPOCHREALTIME
  local ray=(ray start --block --object-store-memory=200000000 --disable-usage-stats --num-gpus=1 --num-cpus=2)
  on_head "$(run head $head "${ray[@]}" --head --port=6379 --include-dashboard=false --node-ip-address=$head)" >/dev/null &
  on_worker "$(run worker $worker "${ray[@]}" --address=$head:6379 --node-ip-address=$worker)" >/dev/null &
  wait
  # One process inside the head's container reads the GCS until both GPUs are there.
  on_head docker exec -i floor-head python3 -u - <<PROBE
import time
from ray._raylet import GcsClient
while True:
    try:
        nodes = GcsClient(address="$head:6379").get_all_node_info(timeout=2).values()
        if sum(dict(n.resources_total).get("GPU", 0) for n in nodes if n.state == 0) >= 2:
            break
    except Exception:
        pass
    time.sleep(0.25)
PROBE
  echo "GPUs verified after $(since)"
  on_head "$(run serve $head vllm serve /opt/models/tiny-qwen3 --served-model-name=tiny --host=0.0.0.0 --port=30000 \
    --tensor-parallel-size=2 --distributed-executor-backend=ray --enforce-eager --max-model-len=256 \
    --dtype=bfloat16)" >/dev/null
  until on_head curl -sf -m 120 http://127.0.0.1:30000/v1/completions -H "'Content-Type: application/json'" \
    -d "'{\"model\":\"tiny\",\"prompt\":\"Hello\",\"max_tokens\":1}'" >/dev/null; do
    sleep 0.25
  done
  echo "first completion after $(since)"
}

down() {
  on_head "docker rm -f floor-serve floor-head >/dev/null 2>&1; docker volume rm floor-ray >/dev/null 2>&1 || true" &
  on_worker "docker rm -f floor-worker >/dev/null 2>&1; docker volume rm floor-ray >/dev/null 2>&1 || true" &
  wait
}

"$1"
