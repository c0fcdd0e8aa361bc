#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "megatron/kernels/phases/numbers.h"

// A warp on the host (phases/flash/warp.h): all of its lanes, one after the other.
namespace megatron::kernels::emulated {

struct HostWarp {
  static constexpr int kLanes = 32;
  template <class T>
  struct Lanes {
    T values[kLanes];
    T& operator[](int lane) { return values[lane]; }
    const T& operator[](int lane) const { return values[lane]; }
  };
  using Words = Lanes<std::uint32_t>;

  template <class F>
  static void each(const F& f) {
    for (int lane = 0; lane < kLanes; ++lane) f(lane);
  }
  template <class F>
  static void each_afresh(const F& f) {
    each(f);
  }
  static std::uint64_t afresh(std::uint64_t x) { return x; }
  template <class T>
  static void exchange(Lanes<T>& to, const Lanes<T>& from, int mask) {
    each([&](int lane) { to[lane] = from[lane ^ mask]; });
  }

  template <class Address>
  static void load_matrices(Words (&to)[4], const Address& address) {
    for (int i = 0; i < 4; ++i)
      each([&](int lane) { std::memcpy(&to[i][lane], address(8 * i + lane / 4) + lane % 4 * 2, sizeof to[i][lane]); });
  }
  template <class Address>
  static void load_matrices_transposed(Words (&to)[4], const Address& address) {
    for (int i = 0; i < 4; ++i)
      each([&](int lane) {
        for (int e = 0; e < 2; ++e)
          std::memcpy(reinterpret_cast<char*>(&to[i][lane]) + 2 * e, address(8 * i + lane % 4 * 2 + e) + lane / 4, 2);
      });
  }

  template <class T>
  static void mma(Lanes<float> (&c)[4], const Words (&a)[4], const Words& b0, const Words& b1) {
    float x[16][16], y[8][16];
    each([&](int lane) {
      const int group = lane / 4, pair = lane % 4 * 2;
      for (int i = 0; i < 4; ++i) unpack<T>(a[i][lane], &x[group + i % 2 * 8][pair + i / 2 * 8]);
      unpack<T>(b0[lane], &y[group][pair]);
      unpack<T>(b1[lane], &y[group][pair + 8]);
    });
    each([&](int lane) {
      for (int e = 0; e < 4; ++e) {
        const float* row = x[lane / 4 + e / 2 * 8];
        const float* column = y[lane % 4 * 2 + e % 2];
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
        c[e][lane] += sum;
      }
    });
  }

  template <class T>
  static void copy(T* to, const T* from, bool there) {
    if (there)
      std::memcpy(to, from, 16);
    else
      std::memset(to, 0, 16);
  }
  template <class T>
  static void copy_word(T* to, const T* from, bool there) {
    static_assert(sizeof(T) == 4);
    if (there)
      *to = *from;
    else
      *to = T(0);
  }
  static void wait() {}

  template <class T>
  static std::uint32_t pack(float low, float high) {
    return phases::narrow<T>(low).bits | static_cast<std::uint32_t>(phases::narrow<T>(high).bits) << 16;
  }
  template <class T>
  static void unpack(std::uint32_t word, float* two) {
    two[0] = phases::widen(T{static_cast<std::uint16_t>(word & 0xFFFFU)});
    two[1] = phases::widen(T{static_cast<std::uint16_t>(word >> 16)});
  }
  static float exp2(float x) { return std::exp2(x); }
  static float log2(float x) { return std::log2(x); }
  static float larger(float x, float y) { return x < y ? y : x; }
  static float inverse(float x) { return 1 / x; }
  static void multiply(std::uint32_t a, std::uint32_t b, std::uint32_t& low, std::uint32_t& high) {
    const std::uint64_t product = std::uint64_t{a} * b;
    low = static_cast<std::uint32_t>(product);
    high = static_cast<std::uint32_t>(product >> 32);
  }
};

}  // namespace megatron::kernels::emulated
