# Sourced by the scripts that build: sets `launcher` to "ccache ", or to nothing where there is no ccache, and makes a
# clone in any folder find what another has compiled. The caller stands in the root of the clone.

# A precompiled header is taken from the cache too. Rooms are compiled from lists of absolute paths (Meson's unity
# files), which the base directory makes relative.
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
launcher=""
if command -v ccache >/dev/null; then launcher="ccache "; fi
