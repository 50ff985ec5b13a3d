#!/usr/bin/env bash
# Runs a command with a Docker engine and the CPU image `worldline:cpu`.
#
#   docker/engine.sh .venv/bin/pytest tests/container
#
# An engine that answers is used, and keeps the images. Elsewhere root on Debian gets one of its own: its data, socket and
# process are in a temporary directory and end with the command; it touches no firewall and no
# kernel setting. The base image is made of Debian's packages, because such machines often reach those
# and no image registry.
#
# Whatever this machine cannot give is one line that says so, and status 0. What fails of Worldline
# itself (the image, the command) is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

DISK_MIN_GB=8
readonly IMAGE=worldline:cpu BASE=worldline-base:bookworm PROBE=worldline-probe-$$
work=$(mktemp -d "${TMPDIR:-/tmp}/worldline-engine.XXXXXX")
engine_pid=""

skip() {
  echo "containers: skipped: $*" >&2
  exit 0
}

say() {
  echo "containers: $*" >&2
}

cleanup() {
  local status=$?
  trap - EXIT INT TERM
  for job in $(jobs -p); do
    [ "$job" = "$engine_pid" ] && continue
    # `timeout` first: it ends what it has started.
    pkill -TERM -P "$job" 2>/dev/null || true
    kill "$job" 2>/dev/null || true
  done
  if [ -n "$engine_pid" ]; then
    docker ps --all --quiet | xargs --no-run-if-empty docker rm --force >/dev/null 2>&1 || true
    kill "$engine_pid" 2>/dev/null || true
    for _ in $(seq 100); do
      kill -0 "$engine_pid" 2>/dev/null || break
      sleep 0.3
    done
    kill -9 "$engine_pid" 2>/dev/null || true
  fi
  if [ -z "$engine_pid" ] && command -v docker >/dev/null; then
    timeout 20 docker network rm "$PROBE" >/dev/null 2>&1 || true
  fi
  rm -rf "$work" 2>/dev/null || say "could not remove all of $work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# limited NAME SECONDS COMMAND...: its output goes to a file, its time is printed.
limited() {
  local name=$1 limit_s=$2 began_s=$SECONDS status=0
  shift 2
  timeout --kill-after=10 "$limit_s" "$@" >"$work/$name.log" 2>&1 || status=$?
  say "$name: $((SECONDS - began_s)) s$([ $status -eq 0 ] || echo ", status $status")"
  return $status
}

last_words() {
  tail -n "${2:-1}" "$work/$1.log"
}

have_engine() {
  command -v docker >/dev/null && timeout 20 docker version --format '{{.Server.Version}}' \
    >/dev/null 2>&1
}

install_engine() {
  [ "$(id -u)" -eq 0 ] || skip "no Docker engine answers, and only root could start one"
  { [ -f /etc/debian_version ] && command -v apt-get >/dev/null; } ||
    skip "no Docker engine answers, and this is no Debian to install one on"
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  local packages=(docker.io docker-compose iproute2 python3-venv libstdc++6 ca-certificates)
  limited apt 300 sh -c "apt-get update && apt-get install -y ${packages[*]}" ||
    skip "apt-get: $(last_words apt)"
}

start_engine() {
  export DOCKER_HOST="unix://$work/docker.sock"
  mkdir "$work/data"
  dockerd --host "$DOCKER_HOST" --data-root "$work/data" --exec-root "$work/exec" \
    --pidfile "$work/docker.pid" --bridge none --iptables=false --ip6tables=false \
    --ip-forward=false --ip-masq=false >"$work/dockerd.log" 2>&1 &
  engine_pid=$!
  for _ in $(seq 120); do
    if have_engine; then
      say "dockerd: $(docker info --format '{{.ServerVersion}}, {{.Driver}}')"
      return
    fi
    kill -0 "$engine_pid" 2>/dev/null || skip "dockerd does not start: $(last_words dockerd 3)"
    sleep 0.5
  done
  skip "dockerd does not answer within 60 s: $(last_words dockerd 3)"
}

# Of this machine's own packages where its Python is of the version that the wheels are for: nothing
# has to come over a network then, nor be unpacked. The files are those of Python and of what a
# Debian cannot be without, with the few that packages make when they are configured.
copy_base() {
  local wanted="base-files base-passwd bash ca-certificates coreutils dash findutils grep
    hostname libc-bin libstdc++6 login passwd python3-venv sed tar util-linux"
  # shellcheck disable=SC2086
  apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts \
    --no-breaks --no-replaces --no-enhances $wanted | grep '^[a-z0-9]' | sort -u |
    xargs dpkg-query --show --showformat='${db:Status-Abbrev} ${binary:Package}\n' 2>/dev/null |
    awk '$1 == "ii" { print $2 }' >"$work/packages"
  {
    xargs dpkg-query --listfiles <"$work/packages"
    find /etc/ssl/certs /etc/alternatives /etc/pam.d
    printf '%s\n' /etc/passwd /etc/group /etc/shadow /etc/gshadow /etc/ld.so.cache
    printf '%s\n' /bin /sbin /lib /lib64 /tmp /root
  } | grep '^/[a-z]' | grep -vE '^/usr/share/(doc|man|locale|info)/' |
    sed -E 's#^/(bin|sbin|lib|lib64)/#/usr/\1/#; s#^/##' | sort -u >"$work/files"
  tar --directory / --create --no-recursion --ignore-failed-read --files-from "$work/files" |
    docker import - "$BASE"
}

# Debian 12, which has that Python.
bootstrap_base() {
  command -v debootstrap >/dev/null || apt-get install -y debootstrap || return
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
    bookworm "$work/root" || return
  rm -rf "$work/root/var/cache/apt/archives" "$work/root/var/lib/apt/lists"
  tar --directory "$work/root" --create . | docker import - "$BASE" || return
  rm -rf "$work/root"
}

make_base() {
  if dpkg-query --show python3.11-venv >/dev/null 2>&1 &&
    [ "$(/usr/bin/python3 -c 'import sys; print(*sys.version_info[:2])')" = "3 11" ]; then
    copy_base
  else
    bootstrap_base
  fi
}

can_run() {
  # Of an engine that was here before: nothing of the try stays, whatever comes of it.
  docker network create --subnet 172.30.76.0/24 "$PROBE" || return
  docker run --rm --network "$PROBE" "$BASE" true || return
  docker network rm "$PROBE" || return
  unshare --net tc qdisc add dev lo root tbf rate 1mbit burst 32kb latency 400ms
}

free_gb=$(df --output=avail -BG "$work" | tail -1 | tr -dc 0-9)
[ "$free_gb" -ge "$DISK_MIN_GB" ] ||
  skip "$free_gb GB of disk are free in $work, $DISK_MIN_GB are needed"
if ! have_engine; then
  install_engine
  start_engine
fi

export -f make_base copy_base bootstrap_base can_run
export work BASE PROBE
# Both wait for the network most of the time.
limited wheelhouse 600 make wheelhouse VARIANT=cpu &
wheels=$!
if ! docker image inspect "$BASE" >/dev/null 2>&1; then
  limited base 600 bash -o pipefail -c make_base || skip "no base image: $(last_words base)"
fi
limited smoke 120 bash -c can_run || skip "the engine runs no containers: $(last_words smoke)"
if ! wait "$wheels"; then
  # Versions that contradict each other are ours; a registry that is away is not.
  if grep -qi "conflict\|no matching distribution" "$work/wheelhouse.log"; then
    last_words wheelhouse 15 >&2
    exit 1
  fi
  skip "no wheelhouse: $(last_words wheelhouse)"
fi
limited image 1200 make images VARIANT=cpu IMAGE="$IMAGE" BASE="$BASE" || {
  last_words image 30 >&2
  exit 1
}
say "$(docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' "$IMAGE")"

began_s=$SECONDS
status=0
timeout --foreground --kill-after=60 1800 "$@" || status=$?
say "command: $((SECONDS - began_s)) s, status $status; everything: $SECONDS s"
exit $status
