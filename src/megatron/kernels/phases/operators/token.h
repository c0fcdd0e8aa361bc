#pragma once
#include <cmath>

#include "megatron/kernels/phases/operators/arguments.h"
#include "megatron/kernels/phases/token_attention.h"
#include "megatron/kernels/phases/token_draw.h"
#include "megatron/kernels/phases/token_ends.h"
#include "megatron/kernels/phases/token_norm.h"
#include "megatron/kernels/phases/token_product.h"
#include "megatron/kernels/phases/token_shortlist.h"
#include "megatron/kernels/token/token.h"

namespace megatron::kernels::phases {

static_assert(kPartKeys == kTokenPartKeys && kMostHeadSize == kMostTokenHeadSize);
static_assert(kMostDrawn == std::int64_t{TokenDraw<float>::kMostOfChunk} * kLikelihoodLanes);

/// TokenKernels by a driver.
template <class Driver>
struct TokenOperators {
  static void embed(const kernels::TokenEmbedding& e, const TokenState& state) {
    with_type(e.y.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using Kernel = TokenEmbedding<T>;
      const typename Kernel::Args args{.tokens = const_pointer<std::int64_t>(state.token_b),
                                       .lengths = const_pointer<std::int64_t>(state.length_b),
                                       .padding = const_pointer<std::int64_t>(state.padding_b),
                                       .words = const_pointer<T>(e.words),
                                       .places = const_pointer<T>(e.places),
                                       .y = pointer<T>(e.y),
                                       .batch = e.y.size(0),
                                       .v = e.words.size(0),
                                       .positions = e.places.defined() ? e.places.size(0) : 0,
                                       .offset = e.offset,
                                       .h = e.y.size(1),
                                       .scale = static_cast<Compute<T>>(e.scale)};
      Driver::template launch<Kernel>(args, blocks_for<Kernel>(Kernel::tasks(args)));
    });
  }

  static void multiply(const kernels::TokenProduct& p) {
    with_type(p.weight.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = Compute<T>;
      TokenProductArgs<T> args;
      if (!p.x.defined()) args.attention = attention_of<T>(*p.attention, *p.state);
      args.weight = const_pointer<T>(p.weight);
      args.bias = const_pointer<T>(p.bias);
      args.gain = const_pointer<T>(p.gain);
      args.shift = const_pointer<T>(p.shift);
      args.n = p.y.size(1);
      args.k = p.weight.size(1);
      args.eps = static_cast<C>(p.epsilon);
      args.factor = static_cast<C>(p.factor);
      args.soft_cap = static_cast<C>(p.soft_cap);
      args.gated = p.gated;
      args.activated = p.form.has_value();
      if (p.form) {
        args.form = form_of(*p.form);
        args.clamp = static_cast<C>(p.form->clamp);
        args.offset = static_cast<C>(p.form->offset);
      }
      const std::int64_t rows = p.y.size(0), most = most_rows<T>(args);
      for (std::int64_t row = 0; row < rows; row += args.rows) {
        args.rows = std::min(rows - row, most);
        args.x = p.x.defined() ? const_pointer<T>(p.x) + row * args.k : nullptr;
        args.first_row = row;
        args.y = pointer<T>(p.y) + row * args.n;
        args.add = p.add.defined() ? const_pointer<T>(p.add) + row * args.n : nullptr;
        launch_rows<T>(args);
      }
    });
  }

  static void normalize(const kernels::TokenNorm& n) {
    with_type(n.x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      const std::int64_t size = n.gain.numel(), rows = n.x.numel() / size;
      Driver::template launch<TokenNorm<T>>({.x = const_pointer<T>(n.x),
                                             .add = const_pointer<T>(n.add),
                                             .y = pointer<T>(n.y),
                                             .gain = {const_pointer<T>(n.gain), const_pointer<T>(n.key_gain)},
                                             .shift = {const_pointer<T>(n.shift), const_pointer<T>(n.key_shift)},
                                             .size = size,
                                             .ratio = n.sharing,
                                             .eps = static_cast<Compute<T>>(n.epsilon)},
                                            n.sharing == 0 ? rows : rows / (n.sharing + 2) * (n.sharing + 1));
    });
  }

  static void attend(const kernels::TokenAttention& t, const TokenState& state) {
    with_type(t.qkv.scalar_type(), [&](auto type) {
      using T = decltype(type);
      const TokenAttentionArgs<T> args = attention_of<T>(t, state);
      if (args.ratio == 1)
        launch_parts<TokenAttention<T, 1>>(args);
      else
        launch_parts<TokenAttention<T, 8>>(args);
      if (!t.y.defined()) return;
      using End = TokenAttentionEnd<T>;
      Driver::template launch<End>(args, blocks_for<End>(End::tasks(args)));
    });
  }

  static void choose(const at::Tensor& logits, const TokenState& state) {
    with_type(logits.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Driver::template launch<TokenChoice<T>>({.logits = const_pointer<T>(logits),
                                               .v = logits.size(1),
                                               .tokens = pointer<std::int64_t>(state.token_b),
                                               .lengths = pointer<std::int64_t>(state.length_b),
                                               .chosen = pointer<std::int64_t>(state.chosen_b)},
                                              logits.size(0));
    });
  }

  static void draw(const at::Tensor& logits, const TokenDraws& draws, const TokenState& state) {
    with_type(logits.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Driver::template launch<TokenDraw<T>>({.logits = const_pointer<T>(logits),
                                             .v = logits.size(1),
                                             .temperature = draws.temperature,
                                             .min_p = draws.min_p,
                                             .keys = const_pointer<std::int64_t>(draws.key_b),
                                             .copies = const_pointer<std::int64_t>(draws.copy_b),
                                             .padding = const_pointer<std::int64_t>(state.padding_b),
                                             .tokens = pointer<std::int64_t>(state.token_b),
                                             .lengths = pointer<std::int64_t>(state.length_b),
                                             .chosen = pointer<std::int64_t>(state.chosen_b)},
                                            logits.size(0));
    });
  }

  static void shortlist(const at::Tensor& logits, const at::Tensor& list, double temperature) {
    with_type(logits.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Driver::template launch<TokenShortlist<T>>({.logits = const_pointer<T>(logits),
                                                  .list = pointer<double>(list),
                                                  .v = logits.size(1),
                                                  .count = static_cast<int>((list.size(1) - 2) / 2),
                                                  .temperature = temperature},
                                                 logits.size(0));
    });
  }

 private:
  static constexpr std::int64_t kMostShared = 80 * 1024;  // of x, in bytes: what a block gets on every GPU from 8.0 on

  template <class T>
  static TokenAttentionArgs<T> attention_of(const kernels::TokenAttention& t, const TokenState& state) {
    using C = Compute<T>;
    TokenAttentionArgs<T> args;
    args.qkv = const_pointer<T>(t.qkv);
    args.keys = pointer<T>(t.keys);
    args.values = pointer<T>(t.values);
    args.stride_row = t.keys.stride(0);
    args.stride_b = t.keys.stride(1);
    args.stride_group = t.keys.stride(2);
    args.lengths = const_pointer<std::int64_t>(state.length_b);
    args.padding = const_pointer<std::int64_t>(state.padding_b);
    if (t.rope.cos.defined()) {
      args.cos = const_pointer<C>(t.rope.cos);
      args.sin = const_pointer<C>(t.rope.sin);
      args.positions = t.rope.cos.size(0);
      args.half = t.rope.cos.size(1);
      args.interleaved = t.rope.interleaved;
    }
    args.batch = t.qkv.size(0);
    args.groups = t.groups;
    args.ratio = t.heads / t.groups;
    args.d = t.head_size;
    args.parts = (t.keys.size(0) + kPartKeys - 1) / kPartKeys;
    args.window = t.window;
    args.scale = static_cast<C>(t.scale != 0 ? t.scale : 1.0 / std::sqrt(static_cast<double>(t.head_size)));
    args.soft_cap = static_cast<C>(t.soft_cap);
    args.sinks = const_pointer<C>(t.sinks);
    const std::int64_t all = args.batch * t.heads * args.parts;
    args.out = pointer<C>(t.scratch);
    args.max = args.out + all * args.d;
    args.sum = args.max + all;
    args.y = pointer<T>(t.y);
    return args;
  }

  /// Rows that one launch takes.
  template <class T>
  static std::int64_t most_rows(const TokenProductArgs<T>& args) {
    if constexpr (std::is_same_v<T, double>) return 1;
    const std::int64_t fit = kMostShared / (args.chunks() * static_cast<std::int64_t>(sizeof(Chunk<T>)));
    return fit >= 8 ? 8 : fit >= 4 ? 4 : 1;
  }
  template <class T>
  static void launch_rows(const TokenProductArgs<T>& args) {
    const auto launch = [&]<int kRows>() {
      using Kernel = TokenProduct<T, kRows>;
      Driver::template launch<Kernel>(args, Kernel::blocks(args));
    };
    if constexpr (!std::is_same_v<T, double>) {
      if (args.rows > 4) return launch.template operator()<8>();
      if (args.rows > 1) return launch.template operator()<4>();
    }
    launch.template operator()<1>();
  }
  template <class Kernel>
  static void launch_parts(const typename Kernel::Args& args) {
    Driver::template launch<Kernel>(args, Kernel::blocks(args));
  }
  static Form form_of(Activation form) {
    static_assert(static_cast<int>(Form::QuickGelu) == Activation::QuickGelu);  // the last: in the same order
    return static_cast<Form>(form.kind);
  }
};

}  // namespace megatron::kernels::phases
