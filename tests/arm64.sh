#!/usr/bin/env bash
# Are the bits the same on 64-bit Arm?  An emulated Arm Python with numba and numpy answers on any Debian machine.
#
#   tests/arm64.sh setup        once: Arm Python from the Debian mirror of this machine, Arm wheels through pip (about 600 MB)
#   tests/arm64.sh run ARGS...  run that Python with ARGS, this project importable
#   tests/arm64.sh test         setup if needed, run tests/check_bits.py here and there, compare what they print
#
# The root lives outside the project, in $MOJOLEARN_ARM64 or the user's cache folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(dirname "$here")
dir=${MOJOLEARN_ARM64:-${XDG_CACHE_HOME:-$HOME/.cache}/mojolearn-arm64}
root=$dir/root site=$dir/site wheels=$dir/wheels log=$dir/setup.log
python=${PYTHON:-python3}

die() { echo "arm64: $*" >&2; exit 1; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

arm_python() { # the name of the one Python of the root, python3.11 on Debian 12
  find "$root/usr/bin" -maxdepth 1 -name 'python3.[0-9]*' -printf '%f\n' 2>/dev/null | sort | head -n 1
}

emulator() {
  command -v qemu-aarch64-static >/dev/null && command -v debootstrap >/dev/null && return
  echo "arm64: installing qemu-user-static and debootstrap" >&2
  { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq qemu-user-static debootstrap; } \
    >>"$log" 2>&1 || die "qemu-user-static and debootstrap are missing and apt-get could not install them; see $log"
}

setup() {
  [ -f "$dir/ready" ] && return
  mkdir -p "$wheels" "$site"
  : >"$log"
  emulator
  . /etc/os-release
  [ "$ID" = debian ] || die "this script knows Debian's Arm packages only; this machine runs $ID"
  if [ -z "$(arm_python)" ]; then
    echo "arm64: unpacking an Arm Python" >&2
    mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } | awk '/^URIs:|^deb / { for (i = 2; i <= NF; i++) if ($i ~ "/debian/?$") { print $i; exit } }')
    [ -n "$mirror" ] || die "no Debian mirror in this machine's package sources"
    rm -rf "$root"
    as_root debootstrap --arch=arm64 --variant=minbase --foreign --include=python3,libpython3-stdlib,libgomp1,libstdc++6 \
      "$VERSION_CODENAME" "$root" "$mirror" >>"$log" 2>&1 || die "debootstrap failed; see $log"
    as_root chown -R "$(id -u)" "$root"
    for deb in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$deb" "$root"; done
    rm -rf "$root"/var/cache/apt/archives/*.deb
  fi
  echo "arm64: fetching the Arm wheels of numba and numpy" >&2
  version=$(arm_python)
  platforms=()
  for p in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do platforms+=(--platform "${p}_aarch64"); done
  "$python" -m pip download -q --only-binary=:all: --implementation cp --python-version "${version#python}" "${platforms[@]}" \
    -d "$wheels" numba numpy >>"$log" 2>&1 || die "pip could not fetch the Arm wheels; see $log"
  for wheel in "$wheels"/*.whl; do "$python" -m zipfile -e "$wheel" "$site"; done
  rm -rf "$wheels"
  touch "$dir/ready"
}

run() { # What the emulated Python needs comes by -E; kernels compile into a folder of their own.
  qemu-aarch64-static -L "$root" -E LD_LIBRARY_PATH="$site/numpy.libs" -E PYTHONPATH="$site:$project:$here" \
    -E PYTHONDONTWRITEBYTECODE=1 -E NUMBA_CACHE_DIR="$dir/cache" -E NUMBA_NUM_THREADS=1 "$root/usr/bin/$(arm_python)" "$@"
}

check() { # the same script in both places must print the same lines
  setup
  echo "arm64: on this machine" >&2
  native=$(PYTHONPATH="$project:$here" NUMBA_NUM_THREADS=1 "$python" "$here/check_bits.py") || die "the check fails on this machine"
  echo "$native"
  echo "arm64: on an emulated Arm" >&2
  arm=$(run "$here/check_bits.py") || die "the check fails on Arm"
  echo "$arm"
  [ "$native" = "$arm" ] || die "the bits differ"
  echo "arm64: equal"
}

case ${1:-} in
  setup) setup ;;
  run) shift; run "$@" ;;
  test) check ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
