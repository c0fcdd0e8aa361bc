#!/bin/sh
# The compiler behind ccache (named by CCACHE), for the sources in CHECKOUT. A precompiled header that is to be made
# again is removed first: to name what it is asked for, ccache preprocesses with -fpch-preprocess, and gcc would read
# the header of before in place of the sources; then two different headers had one name, and an old one came back for
# new sources. It is looked up by the contents of its headers (CCACHE_DEPEND), not by what the preprocessor makes of
# them: gcc knows headers again by size and checksum, so one that differs in a comment alone would be included a second
# time. The namespace keeps out what an older form of this script has stored.
after_output=no
for argument in "$@"; do
  case "$after_output $argument" in "yes "*.gch) rm -f "$argument"; export CCACHE_DEPEND=1 CCACHE_NAMESPACE=headers ;; esac
  case "$argument" in -o) after_output=yes ;; *) after_output=no ;; esac
done
# What ccache asks for before it keeps objects made with a precompiled header.
export CCACHE_SLOPPINESS=pch_defines,time_macros
# Objects made in one checkout serve every other one: what lies in the checkout is named relative to the build folder.
export CCACHE_BASEDIR="$CHECKOUT" CCACHE_NOHASHDIR=1 CCACHE_ABSSTDERR=1
# How the compiler manages its own memory does not show in what it makes.
export CCACHE_IGNOREOPTIONS="--param=ggc-*"
exec "$CCACHE" "$@"
