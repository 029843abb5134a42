#!/bin/sh
# Build the image on a root file system of Debian's packages and run the demo inside of it. No container registry, no
# container engine: buildah with --isolation chroot. Needs root on a Debian. make image-check
#
# What it makes stays in opentab-image/, so the next run is quicker.
set -eu
cd "$(dirname "$0")/../.."

SUITE=bookworm
WORK=$PWD/opentab-image
export BUILDAH_ISOLATION=chroot

say() { printf 'image-check: %s\n' "$*" >&2; }
stop() { printf 'opentab: %s\n' "$*" >&2; exit 3; }
in_store() { buildah --root "$WORK/storage" --runroot "$WORK/run" "$@"; }

install_programs() {
    if command -v buildah >/dev/null && command -v debootstrap >/dev/null; then return; fi
    say "installing buildah and debootstrap"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends buildah debootstrap; } \
        >"$WORK/said" 2>&1 || stop "buildah and debootstrap could not be installed: $(tail -n 1 "$WORK/said")"
}

# A Debian with Python. It trusts whom this machine trusts beyond Debian's own list: a company's proxy, for example.
make_base() {
    if in_store images -q localhost/opentab-base >/dev/null 2>&1; then return; fi
    say "making a root file system of Debian's packages ($SUITE)"
    rm -rf --one-file-system "$WORK/rootfs"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv "$SUITE" "$WORK/rootfs" \
        >"$WORK/said" 2>&1 || stop "debootstrap failed: $(tail -n 1 "$WORK/said")"
    while umount "$WORK/rootfs/proc" 2>/dev/null; do :; done
    python3 deploy/check/trusted.py "$WORK/rootfs/usr/local/share/ca-certificates"
    chroot "$WORK/rootfs" update-ca-certificates >/dev/null 2>&1
    rm -rf "$WORK/rootfs/var/cache/apt" "$WORK/rootfs/var/lib/apt/lists"
    container=$(in_store from scratch)
    in_store add -q "$container" "$WORK/rootfs" / >/dev/null
    in_store config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    in_store commit -q --rm "$container" localhost/opentab-base >/dev/null
    rm -rf --one-file-system "$WORK/rootfs"
}

build() {
    say "building the image"
    in_store bud -q --layers --format docker --build-arg BASE=localhost/opentab-base -f deploy/Dockerfile -t localhost/opentab . \
        >"$WORK/said" 2>&1 || { tail -n 20 "$WORK/said" >&2; stop "the image could not be built"; }
}

[ "$(id -u)" = 0 ] || stop "image-check needs root: buildah makes a root file system."
mkdir -p "$WORK"
install_programs
make_base
build
size_of() { in_store images --format '{{.Size}}' "$1"; }
say "the image has $(size_of localhost/opentab), its base $(size_of localhost/opentab-base)"

container=$(in_store from --pull-never localhost/opentab)
trap 'in_store rm "$container" >/dev/null' EXIT
inside() { in_store run "$@"; }

say "what the demo prints inside of it:"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
inside "$container" -- /usr/bin/tini -s -- entrypoint demo --months 1 --month-seconds 10 --events 300 --port "$port"

# As Spark on Kubernetes starts an executor. There is no driver: it must get as far as looking for one.
inside --env SPARK_EXECUTOR_MEMORY=256m --env SPARK_DRIVER_URL=spark://CoarseGrainedScheduler@127.0.0.1:1 \
    --env SPARK_LOCAL_IP=127.0.0.1 --env SPARK_EXECUTOR_ID=1 --env SPARK_EXECUTOR_CORES=1 --env SPARK_APPLICATION_ID=check --env SPARK_EXECUTOR_POD_IP=127.0.0.1 \
    --env SPARK_RESOURCE_PROFILE_ID=0 --env SPARK_EXECUTOR_POD_NAME=check --env SPARK_JAVA_OPT_0=-Dspark.rpc.numRetries=0 \
    "$container" -- /usr/bin/tini -s -- entrypoint executor >"$WORK/said" 2>&1 || true
grep -q "Failed to connect to /127.0.0.1:1" "$WORK/said" || { tail -n 20 "$WORK/said" >&2; stop "the executor did not look for its driver"; }
say "an executor of Spark on Kubernetes starts, and looks for its driver"
