#pragma once
#include <cstdint>
#include <type_traits>

#include "megatron/kernels/phases/numbers.h"

// A warp on the device (phases/flash/warp.h): a lane a thread. PTX of compute capability 8.0. Bodies are there for the
// device alone, but kernels that call them are functions of both.
namespace megatron::kernels::cuda {

#if defined(__CUDA_ARCH__)
#define MEGATRON_ON_DEVICE(...) __VA_ARGS__
#else
#define MEGATRON_ON_DEVICE(...)
#endif

struct DeviceWarp {
  template <class T>
  struct Lanes {
    T value;
    MEGATRON_BOTH T& operator[](int) { return value; }
    MEGATRON_BOTH const T& operator[](int) const { return value; }
  };
  using Words = Lanes<std::uint32_t>;

  template <class F>
  static MEGATRON_BOTH void each(const F& f) {
    MEGATRON_ON_DEVICE(f(static_cast<int>(threadIdx.x % 32));)
  }
  template <class F>
  static MEGATRON_BOTH void each_afresh(const F& f) {
    MEGATRON_ON_DEVICE(int lane = static_cast<int>(threadIdx.x % 32); asm volatile("" : "+r"(lane)); f(lane);)
  }
  static MEGATRON_BOTH std::uint64_t afresh(std::uint64_t x) {
    MEGATRON_ON_DEVICE(asm volatile("" : "+l"(x));)
    return x;
  }
  template <class T>
  static MEGATRON_BOTH void exchange(Lanes<T>& to, const Lanes<T>& from, int mask) {
    MEGATRON_ON_DEVICE(to.value = __shfl_xor_sync(0xFFFFFFFFu, from.value, mask);)
  }

  template <class Address>
  static MEGATRON_BOTH void load_matrices(Words (&to)[4], const Address& address) {
    MEGATRON_ON_DEVICE(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                                    : "=r"(to[0].value), "=r"(to[1].value), "=r"(to[2].value), "=r"(to[3].value)
                                    : "r"(shared_address(address(static_cast<int>(threadIdx.x % 32)))));)
  }
  template <class Address>
  static MEGATRON_BOTH void load_matrices_transposed(Words (&to)[4], const Address& address) {
    MEGATRON_ON_DEVICE(asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                                    : "=r"(to[0].value), "=r"(to[1].value), "=r"(to[2].value), "=r"(to[3].value)
                                    : "r"(shared_address(address(static_cast<int>(threadIdx.x % 32)))));)
  }

  template <class T>
  static MEGATRON_BOTH void mma(Lanes<float> (&c)[4], const Words (&a)[4], const Words& b0, const Words& b1) {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, phases::Bf16>)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0].value), "+f"(c[1].value), "+f"(c[2].value), "+f"(c[3].value)
          : "r"(a[0].value), "r"(a[1].value), "r"(a[2].value), "r"(a[3].value), "r"(b0.value), "r"(b1.value));
    else
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0].value), "+f"(c[1].value), "+f"(c[2].value), "+f"(c[3].value)
          : "r"(a[0].value), "r"(a[1].value), "r"(a[2].value), "r"(a[3].value), "r"(b0.value), "r"(b1.value));
#endif
  }

  template <class T>
  static MEGATRON_BOTH void copy(T* to, const T* from, bool there) {
    MEGATRON_ON_DEVICE(asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                                    "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                                    : "memory");)
  }
  template <class T>
  static MEGATRON_BOTH void copy_word(T* to, const T* from, bool there) {
    static_assert(sizeof(T) == 4);
    MEGATRON_ON_DEVICE(asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                                    "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0)
                                    : "memory");)
  }
  static MEGATRON_BOTH void wait() { MEGATRON_ON_DEVICE(asm volatile("cp.async.wait_all;" ::: "memory");) }

  template <class T>
  static MEGATRON_BOTH std::uint32_t pack(float low, float high) {
    std::uint32_t word = 0;
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, phases::Bf16>)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
    return word;
  }
  template <class T>
  static MEGATRON_BOTH void unpack(std::uint32_t word, float* two) {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, phases::Bf16>) {
      two[0] = __uint_as_float(word << 16);
      two[1] = __uint_as_float(word & 0xFFFF0000u);
    } else {
      asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
          : "=f"(two[0]), "=f"(two[1])
          : "r"(word));
    }
#endif
  }
  static MEGATRON_BOTH float exp2(float x) {
    float y = 0;
    MEGATRON_ON_DEVICE(asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));)
    return y;
  }
  static MEGATRON_BOTH float log2(float x) {
    float y = 0;
    MEGATRON_ON_DEVICE(y = __log2f(x);)
    return y;
  }
  static MEGATRON_BOTH float larger(float x, float y) { return fmaxf(x, y); }
  static MEGATRON_BOTH float inverse(float x) {
    float y = 0;
    MEGATRON_ON_DEVICE(asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));)
    return y;
  }
  static MEGATRON_BOTH void multiply(std::uint32_t a, std::uint32_t b, std::uint32_t& low, std::uint32_t& high) {
    MEGATRON_ON_DEVICE(asm("{.reg .b64 product; mul.wide.u32 product, %2, %3; mov.b64 {%0, %1}, product;}"
                           : "=r"(low), "=r"(high)
                           : "r"(a), "r"(b));)
  }

 private:
#if defined(__CUDA_ARCH__)
  static __device__ __forceinline__ std::uint32_t shared_address(const void* x) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(x));
  }
#endif
};

}  // namespace megatron::kernels::cuda
