#!/usr/bin/env bash
# Unpacks what a cross-build for arm64 links with from Debian's packages into a folder, and installs nothing. Then
#   meson setup BUILD --cross-file scripts/static.ini --cross-file FOLDER/cross.ini
# takes Debian's cross-compiler, and runs what it built under qemu.
# usage: scripts/arm64_sysroot.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?usage: scripts/arm64_sysroot.sh FOLDER}")
packages=(libfmt-dev libcli11-dev libxxhash-dev zlib1g-dev libdeflate-dev libssl-dev)
[[ ! -e $folder/cross.ini ]] || exit 0

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Package lists of their own: this machine's stay as they are.
state=$folder/apt
mkdir -p "$state"/{state/lists/partial,cache/archives/partial,packages}
: >"$state/status"
apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State=$state/state"
  -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root)
"${apt[@]}" update
(cd "$state/packages" && "${apt[@]}" download "${packages[@]/%/:arm64}")
for package in "$state"/packages/*.deb; do
  dpkg-deb -x "$package" "$folder"
done
rm -rf "$state"
cat >"$folder/cross.ini" <<INI
[binaries]
c = 'aarch64-linux-gnu-gcc'
cpp = 'aarch64-linux-gnu-g++'
ar = 'aarch64-linux-gnu-gcc-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = 'qemu-aarch64-static'

[properties]
sys_root = '$folder'
pkg_config_libdir = ['$folder/usr/lib/aarch64-linux-gnu/pkgconfig', '$folder/usr/share/pkgconfig']

# Headers and sources name themselves in messages of assertions. Meson takes CXXFLAGS for the machine that builds.
[built-in options]
cpp_args = ['-isystem', '$folder/usr/include/aarch64-linux-gnu', '-ffile-prefix-map=$root/='${CXXFLAGS:+$(printf ", '%s'" $CXXFLAGS)}]

# libdeflate.pc names a folder that Debian does not put it in.
cpp_link_args = ['-static', '-L$folder/usr/lib/aarch64-linux-gnu']

[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
INI
