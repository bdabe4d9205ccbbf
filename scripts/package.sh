#!/usr/bin/env bash
# Makes what is released, in dist/: programs for x86_64 and aarch64 that need no shared library, alone, as archives,
# as container images, as wheels and as conda packages; a Debian package; the sdist and the wheel of the module; SHA256SUMS.
# The same commit gives the same bytes, in whatever folder, on machines with the same Debian packages.
# usage: scripts/package.sh [PART...]   PART: x86_64, aarch64, conda (of the two), deb, wheel; all of them without
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022
export LC_ALL=C TZ=UTC
source scripts/compiler_cache.sh
# The date of everything that has one.
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) ||
    { echo "package: this is no git clone; set SOURCE_DATE_EPOCH to the date of the release, in seconds" >&2; exit 1; }
fi
export SOURCE_DATE_EPOCH

# gcc frees memory only when it holds this many KiB of garbage: collecting takes an eighth of its time.
export CXXFLAGS="${CXXFLAGS:-} --param=ggc-min-heapsize=2000000"

# A room is one translation unit: headers are read once and templates are compiled once. Who changes a file waits less for
# units of ten. package_wheel.sh takes the same, so that the wheel has the objects of the program for x86_64.
export GLU_CKPT_UNITY_SIZE=60

dist=$PWD/dist
parts=("$@")
if [[ $# -eq 0 ]]; then
  parts=(x86_64 aarch64 conda deb wheel)
  rm -rf "$dist"
fi
mkdir -p "$dist"
rm -f "$dist/SHA256SUMS"
for part in "${parts[@]}"; do
  [[ $part =~ ^(x86_64|aarch64|conda|deb|wheel)$ ]] || { echo "usage: scripts/package.sh [x86_64|aarch64|conda|deb|wheel]..." >&2; exit 2; }
done
[[ $(uname -m) == x86_64 ]] || { echo "package: releases are made on x86_64; this is $(uname -m)" >&2; exit 1; }
bash scripts/install_deps.sh package

version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" meson.build)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
headline() { printf '\n== %s\n' "$*"; }

# build FOLDER MESON-OPTION...: the program and what it prints about itself.
build() {
  local folder=$1
  shift
  # A cross-compiler is found by its name, so that of the compiler's cache must come first in the path.
  [[ -z $launcher ]] || PATH=/usr/lib/ccache:$PATH
  # Assertions name their files; the folder of this clone is no part of that (arm64_sysroot.sh gives the same option).
  [[ -f $folder/build.ninja ]] || CC=${launcher}gcc CXX=${launcher}g++ CXXFLAGS="$CXXFLAGS -ffile-prefix-map=$PWD/=" meson setup "$folder" -Dunity_size="$GLU_CKPT_UNITY_SIZE" "$@"
  ninja -C "$folder" glu-ckpt glu-ckpt.1 glu-ckpt.bash _glu-ckpt glu-ckpt.fish
}

# What is linked into a static program, with the licenses that ask for it.
notices() {
  local package
  printf 'glu-ckpt is under the Apache License 2.0 (LICENSE). The program holds the libraries below, as Debian has them.\n'
  printf 'It can be linked again with other versions of them: its source and scripts/package.sh are all that is needed.\n'
  for package in libcli11-dev libfmt-dev libxxhash-dev zlib1g-dev libdeflate-dev libssl-dev "libstdc++-$(g++ -dumpversion)-dev" libc6-dev; do
    printf '\n%s\n\n' "==== $package $(dpkg-query -W -f '${Version}' "$package") ===="
    cat "/usr/share/doc/$package/copyright"
  done
  for package in LGPL-2.1 GPL-3 Apache-2.0; do
    printf '\n%s\n\n' "==== $package ===="
    cat "/usr/share/common-licenses/$package"
  done
}

# links_lead_somewhere FOLDER: what its README.md links to is there.
links_lead_somewhere() {
  local link
  while read -r link; do
    [[ -e $1/$link ]] || { echo "package: README.md links to $link, which the archive has not" >&2; return 1; }
  done < <(grep -o '](\([^)#:]\+\)' "$1/README.md" | sed 's/^](//' | sort -u)
}

# pack_static ARCHITECTURE OCI-ARCHITECTURE BUILD STRIP
pack_static() {
  local name=glu-ckpt-$version-$1-linux folder
  folder=$work/$name
  mkdir -p "$folder/completions"
  "$4" --strip-all -o "$folder/glu-ckpt" "$3/glu-ckpt"
  install -m 644 "$3"/{glu-ckpt.bash,_glu-ckpt,glu-ckpt.fish} "$folder/completions"
  install -m 644 "$3/glu-ckpt.1" README.md CHANGELOG.md CONTRIBUTING.md LICENSE "$folder"
  install -D -m 644 -t "$folder/docs" docs/*
  links_lead_somewhere "$folder"
  notices >"$folder/THIRD-PARTY-NOTICES"
  install -m 755 "$folder/glu-ckpt" "$dist/$name"
  tar -C "$work" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    -cf - "$name" | gzip -9n >"$dist/$name.tar.gz"
  python3 scripts/program_wheel.py "$dist" "$version" "$1" "$folder/glu-ckpt" "$folder/LICENSE" "$folder/THIRD-PARTY-NOTICES"
  python3 scripts/oci_image.py "$dist/$name.oci.tar" "$2" "$version" "$folder/glu-ckpt" \
    "$folder/LICENSE:usr/share/doc/glu-ckpt/LICENSE" \
    "$folder/THIRD-PARTY-NOTICES:usr/share/doc/glu-ckpt/THIRD-PARTY-NOTICES"
}

package_x86_64() {
  build build-package-x86_64 --native-file scripts/static.ini
  pack_static x86_64 amd64 build-package-x86_64 strip
  bash tests/static/run_static.sh "$dist/glu-ckpt-$version-x86_64-linux"
}

package_aarch64() {
  bash scripts/arm64_sysroot.sh build-arm64-sysroot
  build build-package-aarch64 --cross-file scripts/static.ini --cross-file build-arm64-sysroot/cross.ini
  pack_static aarch64 arm64 build-package-aarch64 aarch64-linux-gnu-strip
  bash tests/static/run_static.sh "$dist/glu-ckpt-$version-aarch64-linux" qemu-aarch64-static
}

# The programs that the two parts before it made, in a channel of their own: dist/conda.
package_conda() {
  local architecture
  python3 -m venv "$work/conda"
  "$work/conda/bin/pip" install --quiet --disable-pip-version-check -r packaging/conda/requirements.txt
  rm -rf "$dist/conda"
  for architecture in x86_64 aarch64; do
    "$work/conda/bin/python" scripts/conda_package.py "$dist" "$version" "$architecture"
  done
}

package_deb() {
  local root=$work/deb/debian/glu-ckpt share
  build build-package-deb --native-file scripts/without_nvcc.ini --prefix /usr -Db_pie=true \
    "-Dcpp_link_args=-Wl,-z,relro,-z,now"
  share=$root/usr/share
  mkdir -p "$root/usr/bin" "$root/DEBIAN" "$share"/{man/man1,doc/glu-ckpt,bash-completion/completions} \
    "$share"/{zsh/vendor-completions,fish/vendor_completions.d}
  strip --strip-unneeded --remove-section=.comment --remove-section=.note -o "$root/usr/bin/glu-ckpt" build-package-deb/glu-ckpt
  gzip -9n <build-package-deb/glu-ckpt.1 >"$share/man/man1/glu-ckpt.1.gz"
  install -m 644 build-package-deb/glu-ckpt.bash "$share/bash-completion/completions/glu-ckpt"
  install -m 644 build-package-deb/_glu-ckpt "$share/zsh/vendor-completions"
  install -m 644 build-package-deb/glu-ckpt.fish "$share/fish/vendor_completions.d"
  install -m 644 packaging/debian/copyright "$share/doc/glu-ckpt"
  cp packaging/debian/control "$work/deb/debian"
  printf 'glu-ckpt (%s) unstable; urgency=medium\n\n  * Release %s; CHANGELOG.md of the source has what changed.\n\n -- %s  %s\n' \
    "$version" "$version" "$(sed -n 's/^Maintainer: //p' packaging/debian/control)" \
    "$(date -R -d "@$SOURCE_DATE_EPOCH")" >"$work/deb/debian/changelog"
  gzip -9n <"$work/deb/debian/changelog" >"$share/doc/glu-ckpt/changelog.gz"
  (
    cd "$work/deb"
    dpkg-shlibdeps -Tdebian/substvars "$root/usr/bin/glu-ckpt"
    dpkg-gencontrol -Tdebian/substvars -P"$root" -fdebian/files
    cd "$root"
    find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums
  )
  # One thread: the compressor cuts its input into as many parts as it has.
  dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$root" "$dist/glu-ckpt_${version}_amd64.deb"
  lintian --fail-on error --suppress-tags initial-upload-closes-no-bugs "$dist/glu-ckpt_${version}_amd64.deb"
}

# nvcc names what is private to a file after the folder in which the file stands, so that is the same for every release.
wheel_folder=/tmp/glu-ckpt-release
package_wheel() {
  mkdir "$wheel_folder" ||
    { echo "package: $wheel_folder is there: another wheel is being built in it, or was stopped; then remove it" >&2; exit 1; }
  trap 'rm -rf "$work" "$wheel_folder"' EXIT
  git clone --quiet . "$wheel_folder/glu-ckpt"
  notices >"$wheel_folder/glu-ckpt/LICENSE-THIRD-PARTY"
  local python
  bash "$wheel_folder/glu-ckpt/scripts/package_wheel.sh" "$dist"
  # These have no stable ABI: a wheel each, of the same objects but the module's own.
  for python in $(scripts/find_python.sh 10 11); do
    bash "$wheel_folder/glu-ckpt/scripts/package_wheel.sh" "$dist" --wheel-only --python "$python"
  done
}

for part in "${parts[@]}"; do
  headline "$part"
  "package_$part"
done
headline "dist"
(cd "$dist" && find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum -- >"$work/sums" && install -m 644 "$work/sums" SHA256SUMS && cat SHA256SUMS)
