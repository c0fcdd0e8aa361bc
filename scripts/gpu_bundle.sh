#!/usr/bin/env bash
# Makes .gpu/: what proves the program on a machine with a GPU where nothing can be built or installed (scripts/gpu/run.sh).
# Stripped programs, the plugin, and the libraries of this system that they need, packed, in less than 40 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build
bundle=.gpu
needed="megatron megatron-torch gpu_test"
for name in $needed; do
  [ -x "$build/$name" ] || {
    printf '%s\n' "gpu-bundle needs $build/$name." '  got:  no such program' "  fix:  cmake --build $build --target $needed" >&2
    exit 2
  }
done
rm -rf "$bundle"
mkdir -p "$bundle"/{bin,lib/c++,configs}
for name in $needed; do strip -o "$bundle/bin/$name" "$build/$name"; done
if [ -e "$build/libmegatron_cuda.so" ]; then
  strip -o "$bundle/bin/libmegatron_cuda.so" "$build/libmegatron_cuda.so"
else
  echo "gpu-bundle: without the CUDA plugin ($(grep 'CUDA plugin' "$build/configure.log" | sed 's/^-- //')): for a dry run alone"
fi
# Libraries of this system: not those of libtorch, nor of C and the loader, which belong to the other.
ldd "$bundle"/bin/* | awk '$2 == "=>" && $3 ~ "^/(usr/)?lib/" { print $3 }' | sort -u | while read -r library; do
  name=$(basename "$library")
  case $name in
    libc.so.*|libm.so.*|libdl.so.*|librt.so.*|libpthread.so.*|libutil.so.*|ld-linux*|libcuda*|libnv*) ;;
    libstdc++.so.*|libgcc_s.so.*) cp -L "$library" "$bundle/lib/c++/$name" ;;
    *) cp -L "$library" "$bundle/lib/$name"; strip "$bundle/lib/$name" ;;
  esac
done
cp configs/gpt_tiny.toml configs/gpt2_124m.toml configs/gpt_1.3b.toml configs/smollm2_135m.toml configs/smollm2_1.7b.toml "$bundle/configs/"
cp scripts/gpu/run.sh scripts/gpu/checks.py scripts/gpu/peer.py "$bundle/"
libc=$(objdump -T "$bundle"/bin/megatron* "$bundle"/bin/gpu_test 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -1)
tar -C "$bundle" -czf "$bundle/bin.tar.gz" bin lib
rm -r "$bundle"/{bin,lib}
size=$(du -sm "$bundle" | cut -f1)
echo "gpu-bundle: $size MiB in $bundle; needs $libc or later there"
[ "$size" -lt 40 ] || { echo "gpu-bundle: $size MiB are more than 40"; exit 1; }
