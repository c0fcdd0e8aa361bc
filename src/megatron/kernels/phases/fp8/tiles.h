#pragma once
#include "megatron/kernels/phases/fp8/format.h"
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Copies of x [first, samples, last] in 8 bits, or numbers of x's type that are those divided by their scales. A block
/// has kRows indices of the first dimension and 128 of the last of one sample, which its threads keep: x is read once.
template <class T, int kRows>
struct Fp8Tiles : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 5, kN = kChunk<T>;
  static constexpr int kColumns = 128, kAcross = kColumns / kN, kDown = kThreads / kAcross, kEach = kRows / kDown;
  static constexpr int kLines = 128, kGroups = kLines / kRows;  ///< blocks of rows, and of those beside each other
  static constexpr int kLanes = 8, kWord = 4, kStride = kRows + kWord, kPiece = 16;
  struct Args {
    const T* x = nullptr;
    std::int64_t first = 0, samples = 1, last = 0;
    Divisor tiles = {}, of_samples = {};  ///< of the last dimension, and `samples`
    bool fine = false;
    Fp8Sharing sharing = Fp8Sharing::All;
    const float *scale_at = nullptr, *inverse_at = nullptr;  ///< of all; null: the next two
    float scale = 1, inverse = 1;
    std::uint8_t *rows = nullptr, *turned = nullptr;  ///< as x, and [last, samples, first]; null: not wanted
    T* rounded = nullptr;                             ///< as x; null: not wanted
    bool rounded_by_columns = false;                  ///< by the scales of copies that are turned
    Fp8Inverses of_rows = {}, of_turned = {};
    std::uint32_t* maxima = nullptr;  ///< the largest magnitude of each block; null: not wanted
  };
  struct Shared {
    std::uint32_t row_part[kRows][kAcross], column_part[kDown][kColumns];
    std::uint32_t row_amax[kLines], lane[kLanes];
    PowerOfTwo of_row[kLines], of_column[kColumns];
    alignas(16) std::uint8_t tile[kColumns * kStride];  ///< turned
  };
  struct Local {
    Chunk<T> held[kEach];
  };

  /// The launch's blocks.
  static std::int64_t blocks(const Args& a) {
    return (a.first + kRows - 1) / kRows * a.samples * ((a.last + kColumns - 1) / kColumns);
  }

  struct Where {
    std::int64_t first, sample, last;  ///< of the block's first number
    int across, down, count;           ///< of the thread: its chunk's place in the block, and its size

    MEGATRON_BOTH Where(const Args& a, const At& at) {
      const std::int64_t above = a.tiles.of(at.block), tile = a.of_samples.of(above);
      last = (at.block - above * a.tiles.by) * kColumns;
      sample = above - tile * a.samples;
      first = tile * kRows;
      across = at.thread % kAcross;
      down = at.thread / kAcross;
      const std::int64_t left = a.last - last - across * kN;
      count = left <= 0 ? 0 : left < kN ? static_cast<int>(left) : kN;
    }
    MEGATRON_BOTH int row(int i) const { return down * kEach + i; }
    MEGATRON_BOTH std::int64_t place(const Args& a, int i) const {
      return ((first + row(i)) * a.samples + sample) * a.last + last + across * kN;
    }
  };

  static MEGATRON_BOTH bool looks(const Args& a) { return a.sharing != Fp8Sharing::All || a.maxima != nullptr; }

  static MEGATRON_BOTH void read(const Args& a, const Where& at, Shared& shared, Local& local) {
    std::uint32_t column[kN] = {};
    MEGATRON_UNROLL for (int i = 0; i < kEach; ++i) {
      const bool there = at.count > 0 && at.first + at.row(i) < a.first;
      local.held[i] = there ? load_chunk(a.x + at.place(a, i), at.count) : Chunk<T>{};
      if (!looks(a)) continue;
      std::uint32_t row = 0;
      MEGATRON_UNROLL for (int e = 0; e < kN; ++e) {
        const std::uint32_t size = magnitude_of(number_of(local.held[i], e));
        row = larger(row, size);
        column[e] = larger(column[e], size);
      }
      shared.row_part[at.row(i)][at.across] = row;
    }
    if (!looks(a)) return;
    MEGATRON_UNROLL for (int e = 0; e < kN; ++e) shared.column_part[at.down][at.across * kN + e] = column[e];
  }

  /// One half of the threads looks at rows, the other at columns.
  static MEGATRON_BOTH void find_scales(const Args& a, const Where& at, int thread, Shared& shared) {
    if (!looks(a)) return;
    constexpr int kOfGroup = kAcross / kGroups;
    const bool lines = a.sharing == Fp8Sharing::Line;
    std::uint32_t amax = 0;
    if (thread < kLines) {
      const int row = thread / kGroups, group = thread % kGroups;
      for (int i = 0; i < kOfGroup; ++i) amax = larger(amax, shared.row_part[row][group * kOfGroup + i]);
      shared.row_amax[thread] = amax;
      if (!lines) return;
      const PowerOfTwo found = shared.of_row[thread] = scale_of_block(amax, a.fine);
      if (at.first + row < a.first && at.last + group * kRows < a.last)
        a.of_rows.write((at.first + row) * a.samples + at.sample, at.last / kRows + group, found.inverse);
    } else if (lines) {
      const int column = thread - kLines;
      for (int i = 0; i < kDown; ++i) amax = larger(amax, shared.column_part[i][column]);
      const PowerOfTwo found = shared.of_column[column] = scale_of_block(amax, a.fine);
      if (at.last + column < a.last)
        a.of_turned.write(at.last + column, at.sample * ((a.first + kRows - 1) / kRows) + at.first / kRows,
                          found.inverse);
    }
  }
  static MEGATRON_BOTH void fold(const Args& a, int thread, Shared& shared) {
    if (thread >= kLanes || !looks(a)) return;
    std::uint32_t lane = 0;
    for (int i = thread; i < kLines; i += kLanes) lane = larger(lane, shared.row_amax[i]);
    shared.lane[thread] = lane;
  }

  static MEGATRON_BOTH PowerOfTwo of_all(const Args& a, const Where& at, int thread, const Shared& shared) {
    PowerOfTwo all{a.scale, a.inverse};
    if (a.scale_at != nullptr) all = {*a.scale_at, *a.inverse_at};
    if (a.sharing != Fp8Sharing::Square && a.maxima == nullptr) return all;
    std::uint32_t amax = 0;
    MEGATRON_UNROLL for (int i = 0; i < kLanes; ++i) amax = larger(amax, shared.lane[i]);
    if (a.sharing == Fp8Sharing::Square) {
      all = scale_of_block(amax, a.fine);
      if (thread == 0) a.of_rows.write(at.first / kRows, at.last / kColumns, all.inverse);
      if (thread == 0) a.of_turned.write(at.last / kColumns, at.first / kRows, all.inverse);
    }
    if (a.maxima != nullptr && thread == 0)
      a.maxima[(at.first / kRows * a.samples + at.sample) * a.tiles.by + at.last / kColumns] = amax;
    return all;
  }

  /// `count` of a chunk's bytes, which begin at a multiple of their number where x's rows do.
  static MEGATRON_BOTH void store_bytes(std::uint8_t* to, int count, const std::uint32_t (&bytes)[kN]) {
#if defined(__CUDA_ARCH__)
    if constexpr (kN >= 4) {
      if (count == kN && reinterpret_cast<std::uintptr_t>(to) % kN == 0) {
        std::uint32_t words[kN / 4];
        MEGATRON_UNROLL for (int w = 0; w < kN / 4; ++w) words[w] =
            bytes[4 * w] | bytes[4 * w + 1] << 8 | bytes[4 * w + 2] << 16 | bytes[4 * w + 3] << 24;
        if constexpr (kN == 8)
          *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
        else
          *reinterpret_cast<std::uint32_t*>(to) = words[0];
        return;
      }
    }
#endif
    MEGATRON_UNROLL for (int e = 0; e < kN; ++e) {
      if (e < count) to[e] = static_cast<std::uint8_t>(bytes[e]);
    }
  }

  template <bool kFine>
  static MEGATRON_BOTH void write_rows(const Args& a, const Where& at, const PowerOfTwo& all, const Shared& shared,
                                       const Local& local) {
    using Format = Fp8Format<kFine>;
    if (a.rows == nullptr && a.rounded == nullptr) return;
    const bool lines = a.sharing == Fp8Sharing::Line, columns = lines && a.rounded_by_columns;
    MEGATRON_UNROLL for (int i = 0; i < kEach; ++i) {
      if (at.count == 0 || at.first + at.row(i) >= a.first) continue;
      PowerOfTwo by = lines ? shared.of_row[at.row(i) * kGroups + at.across * kN / kRows] : all;
      if (a.rows != nullptr) {
        std::uint32_t bytes[kN];
        MEGATRON_UNROLL for (int e = 0; e < kN; ++e) bytes[e] =
            Format::quantized(number_of(local.held[i], e), by.scale);
        store_bytes(a.rows + at.place(a, i), at.count, bytes);
      }
      if (a.rounded == nullptr) continue;
      C divided[kN];
      MEGATRON_UNROLL for (int e = 0; e < kN; ++e) {
        if (columns) by = shared.of_column[at.across * kN + e];
        const std::uint32_t byte = Format::quantized(number_of(local.held[i], e), by.scale);
        divided[e] = static_cast<C>(Format::value(byte)) * static_cast<C>(by.inverse);
      }
      store(a.rounded + at.place(a, i), at.count, divided);
    }
  }
  /// Into shared memory: the bytes of a word are those of neighbours along the first dimension.
  template <bool kFine>
  static MEGATRON_BOTH void turn(const Args& a, const Where& at, const PowerOfTwo& all, Shared& shared,
                                 const Local& local) {
    constexpr int kTogether = kEach < kWord ? kEach : kWord;
    if (a.turned == nullptr) return;
    MEGATRON_UNROLL for (int e = 0; e < kN; ++e) {
      const int column = at.across * kN + e;
      const float scale = a.sharing == Fp8Sharing::Line ? shared.of_column[column].scale : all.scale;
      MEGATRON_UNROLL for (int i = 0; i < kEach; i += kTogether) {
        std::uint32_t word = 0;
        MEGATRON_UNROLL for (int j = 0; j < kTogether; ++j) word |=
            Fp8Format<kFine>::quantized(number_of(local.held[i + j], e), scale) << 8 * j;
        std::uint8_t* const to = shared.tile + column * kStride + at.row(i);
#if defined(__CUDA_ARCH__)
        if constexpr (kTogether == kWord)
          *reinterpret_cast<std::uint32_t*>(to) = word;
        else
          *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(word);
#else
        for (int j = 0; j < kTogether; ++j) to[j] = static_cast<std::uint8_t>(word >> 8 * j);
#endif
      }
    }
  }
  static MEGATRON_BOTH void write_turned(const Args& a, const Where& at, int thread, const Shared& shared) {
    constexpr int kPieces = kRows / kPiece;
    if (a.turned == nullptr) return;
    MEGATRON_UNROLL for (int task = thread; task < kColumns * kPieces; task += kThreads) {
      const int column = task / kPieces, piece = task % kPieces;
      const std::int64_t first = at.first + piece * kPiece;
      if (at.last + column >= a.last || first >= a.first) continue;
      const std::uint8_t* const from = shared.tile + column * kStride + piece * kPiece;
      std::uint8_t* const to = a.turned + ((at.last + column) * a.samples + at.sample) * a.first + first;
#if defined(__CUDA_ARCH__)
      if (first + kPiece <= a.first && reinterpret_cast<std::uintptr_t>(to) % kPiece == 0) {
        const auto* const words = reinterpret_cast<const std::uint32_t*>(from);
        *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
        continue;
      }
#endif
      const std::int64_t left = a.first - first;
      MEGATRON_UNROLL for (int i = 0; i < kPiece; ++i) {
        if (i < left) to[i] = from[i];
      }
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& local) {
    const Where where(a, at);
    if constexpr (kPhase == 0) read(a, where, shared, local);
    if constexpr (kPhase == 1) find_scales(a, where, at.thread, shared);
    if constexpr (kPhase == 2) fold(a, at.thread, shared);
    if constexpr (kPhase == 3) {
      const PowerOfTwo all = of_all(a, where, at.thread, shared);
      if (a.fine) {
        write_rows<true>(a, where, all, shared, local);
        turn<true>(a, where, all, shared, local);
      } else {
        write_rows<false>(a, where, all, shared, local);
        turn<false>(a, where, all, shared, local);
      }
    }
    if constexpr (kPhase == 4) write_turned(a, where, at.thread, shared);
  }
};

}  // namespace megatron::kernels::phases
