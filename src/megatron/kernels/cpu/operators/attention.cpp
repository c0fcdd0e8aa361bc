#include "megatron/kernels/attention.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "megatron/base/philox.h"
#include "megatron/kernels/cpu/attention/attention.h"
#include "megatron/kernels/cpu/attention/attention_tiles.h"
#include "megatron/kernels/cpu/attention/backward_pieces.h"
#include "megatron/kernels/cpu/elementwise/element_of.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

/// Float32, bf16 or fp16 on the CPU with each head's elements side by side.
bool rows_fast(const at::Tensor& x) {
  return x.is_cpu() && cpu::element_of(x) && (x.stride(-1) == 1 || x.size(-1) == 1) && x.numel() > 0;
}

template <class... Tensors>
bool can_attend(const AttentionOptions& options, const at::Tensor& q, const Tensors&... others) {
  return cpu::enabled() && options.scale >= 0 && (options.soft_cap == 0 || !options.bias.defined()) && rows_fast(q) &&
         ((rows_fast(others) && others.scalar_type() == q.scalar_type()) && ...);
}

/// Of [s, b, heads, d] or [s, b, groups, heads of a group, d].
template <class Byte>
cpu::HeadsOf<Byte> strides_of(const at::Tensor& x, std::int64_t groups, Byte* data) {
  const std::int64_t bytes = x.element_size(), members = x.dim() == 5 ? x.size(3) : x.size(2) / groups;
  const std::int64_t member = members == 1 ? 0 : x.dim() == 5 ? x.stride(3) : x.stride(2);
  const std::int64_t group = x.dim() == 5 ? x.stride(2) : x.stride(2) * members;
  return {data, x.stride(0) * bytes, x.stride(1) * bytes, group * bytes, member * bytes};
}
cpu::Heads heads_of(const at::Tensor& x, std::int64_t groups) {
  return strides_of(x, groups, static_cast<const std::byte*>(x.const_data_ptr()));
}
cpu::MutableHeads mutable_heads_of(const at::Tensor& x, std::int64_t groups) {
  return strides_of(x, groups, static_cast<std::byte*>(x.mutable_data_ptr()));
}

/// The problem as pointers, and the tensors that keep them valid.
struct Prepared {
  cpu::AttentionProblem problem;
  at::Tensor first_key, key_lengths, sample_ids, bias, sinks;
};

/// Keys and values.
struct Seen {
  cpu::Heads k, v;
  std::int64_t keys, groups;
};

Seen side_by_side(const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t groups = k.size(2);
  return {heads_of(k, groups), heads_of(v, groups), k.size(0), groups};
}

/// Those of one sequence in its blocks of pools [blocks, rows, g, d]. Without views, which take as long as a page of
/// keys.
Seen in_blocks_of(const at::Tensor& k, const at::Tensor& v, const at::Tensor& blocks, std::int64_t keys) {
  const auto heads = [&](const at::Tensor& x) {
    const std::int64_t bytes = x.element_size();
    return cpu::Heads{.data = static_cast<const std::byte*>(x.const_data_ptr()),
                      .position = x.stride(1) * bytes,
                      .batch = 0,
                      .group = x.stride(2) * bytes,
                      .member = 0,
                      .blocks = blocks.const_data_ptr<std::int64_t>(),
                      .block = x.stride(0) * bytes,
                      .block_shift = static_cast<unsigned>(std::countr_zero(static_cast<std::size_t>(x.size(1))))};
  };
  return {heads(k), heads(v), keys, k.size(2)};
}

Prepared prepare(const at::Tensor& q, const Seen& seen, const AttentionOptions& options) {
  Prepared prepared{};
  cpu::AttentionProblem& p = prepared.problem;
  const auto extent = [](const at::Tensor& x, int dim) { return static_cast<std::size_t>(x.size(dim)); };
  p.queries = extent(q, 0);
  p.keys = static_cast<std::size_t>(seen.keys);
  p.batch = extent(q, 1);
  p.groups = static_cast<std::size_t>(seen.groups);
  p.size = extent(q, -1);
  p.sharing = static_cast<std::size_t>(q.numel()) / (p.queries * p.batch * p.groups * p.size);
  p.type = *cpu::element_of(q);
  p.scale = static_cast<float>(options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(p.size)));
  p.soft_cap = static_cast<float>(options.soft_cap);
  p.causal = options.causal;
  p.ahead = static_cast<std::size_t>(options.ahead);
  p.q = heads_of(q, seen.groups);
  p.k = seen.k;
  p.v = seen.v;
  if (options.first_key.defined()) {
    prepared.first_key = options.first_key.to(at::kInt).contiguous();
    p.first_key = prepared.first_key.const_data_ptr<std::int32_t>();
  }
  if (options.key_lengths.defined()) {
    prepared.key_lengths = options.key_lengths.to(at::kInt).contiguous();
    p.key_lengths = prepared.key_lengths.const_data_ptr<std::int32_t>();
  }
  if (options.bias.defined()) {
    prepared.bias =
        at::constant_pad_nd(options.bias.to(at::kFloat), {0, 16}).contiguous();  // vectors read past the end
    p.bias = prepared.bias.const_data_ptr<float>();
    p.bias_stride = static_cast<std::size_t>(prepared.bias.size(1));
  }
  if (options.sinks.defined()) {
    prepared.sinks = options.sinks.to(at::kFloat).contiguous();
    p.sinks = prepared.sinks.const_data_ptr<float>();
  }
  if (options.dropout.p > 0) {
    prepared.sample_ids = options.dropout.sample_ids.contiguous();
    p.sample_ids = prepared.sample_ids.const_data_ptr<std::int64_t>();
    p.dropout_key = options.dropout.key;
    p.dropout_threshold = dropout_threshold(options.dropout.p);
    p.keep_scale = options.dropout.p < 1 ? static_cast<float>(1.0 / (1.0 - options.dropout.p)) : 0.0f;
    p.head_offset = static_cast<std::size_t>(options.head_offset);
    p.first_query = static_cast<std::size_t>(options.dropout.position_offset);
    p.first_masked_key = static_cast<std::size_t>(options.dropout.feature_offset);
    p.sequence_queries = static_cast<std::size_t>(options.dropout.positions_or(static_cast<std::int64_t>(p.queries)));
    p.sequence_keys = static_cast<std::size_t>(options.dropout.features_or(static_cast<std::int64_t>(p.keys)));
  }
  return prepared;
}

/// The first head of each group, for what is done once a group.
cpu::Head group_at(const cpu::AttentionProblem& p, std::int64_t i) {
  return p.head(static_cast<std::size_t>(i) * p.sharing);
}

/// Parts of `floats` each, by default one for each thread.
struct Scratch {
  explicit Scratch(std::size_t floats, std::size_t parts = static_cast<std::size_t>(cpu::num_threads()))
      : stride((floats + 15) / 16 * 16), memory(at::empty({static_cast<std::int64_t>(parts * stride)}, at::kFloat)) {}
  float* part(std::size_t index) const { return memory.mutable_data_ptr<float>() + index * stride; }
  float* part(int thread) const { return part(static_cast<std::size_t>(thread)); }
  std::uint16_t* words(std::size_t index) const { return reinterpret_cast<std::uint16_t*>(part(index)); }

  std::size_t stride;
  at::Tensor memory;
};

void forward_few(const cpu::AttentionProblem& p, const cpu::MutableHeads& out, float* logsumexp) {
  const Scratch memory(cpu::few_queries_floats(p), 1);
  const cpu::FewQueries queries{p, out, logsumexp};
  cpu::attention_of_few({&queries, 1}, memory.part(0));
}

/// Calls compute(head, number of a block of `size` queries, thread) for each head and block, the last blocks first.
template <class Compute>
void for_query_blocks(const cpu::AttentionProblem& p, std::size_t size, const Compute& compute) {
  const std::size_t blocks = (p.queries + size - 1) / size;
  cpu::for_each_block(static_cast<std::int64_t>(p.batch * p.heads() * blocks), [&](std::int64_t i, int thread) {
    const auto number = static_cast<std::size_t>(i);
    compute(p.head(number / blocks), blocks - 1 - number % blocks, thread);
  });
}

/// Calls pack(group, index) for each group, then compute(head, block of queries, index of its group, thread).
template <class Pack, class Compute>
void in_blocks(const cpu::AttentionProblem& p, const Pack& pack, const Compute& compute) {
  cpu::for_each_block(static_cast<std::int64_t>(p.batch * p.groups),
                      [&](std::int64_t i, int) { pack(group_at(p, i), static_cast<std::size_t>(i)); });
  for_query_blocks(p, cpu::kQueryBlock, [&](const cpu::Head& head, std::size_t block, int thread) {
    compute(head, block, head.b * p.groups + head.group, thread);
  });
}

void forward_blocks(const cpu::AttentionProblem& p, const cpu::MutableHeads& out, float* logsumexp) {
  const Scratch scratch(cpu::forward_scratch_floats(p)), packed(cpu::packed_floats(p), p.batch * p.groups);
  in_blocks(
      p, [&](const cpu::Head& group, std::size_t index) { cpu::pack_keys_and_values(p, group, packed.part(index)); },
      [&](const cpu::Head& head, std::size_t block, std::size_t group, int thread) {
        cpu::attention_forward(p, head, block, packed.part(group), out, logsumexp, scratch.part(thread));
      });
}

void forward_tiles(const cpu::AttentionProblem& p, const cpu::MutableHeads& out, float* logsumexp) {
  const cpu::TileUnit unit = cpu::tile_unit();
  const Scratch scratch(cpu::tile_forward_scratch_floats(p));
  const std::size_t words = cpu::tile_packed_words(p), groups = p.batch * p.groups;
  const auto threads = static_cast<std::size_t>(cpu::num_threads());
  // Keys and values stay in the caches of the thread that packed them where each can take whole groups and none waits
  // long for the last.
  if (groups % threads == 0 || groups >= 8 * threads) {
    const Scratch packed(words / 2);
    cpu::for_each_block(static_cast<std::int64_t>(groups), [&](std::int64_t i, int thread) {
      const cpu::Head group = group_at(p, i);
      std::uint16_t* const of_group = packed.words(static_cast<std::size_t>(thread));
      cpu::tile_pack_keys_and_values(p, group, of_group);
      for (std::size_t member = 0; member < p.sharing; ++member)
        for (std::size_t block = 0; block * cpu::kQueryBlock < p.queries; ++block)
          cpu::tile_attention_forward(p, unit, {group.b, group.group, member}, block, of_group, out, logsumexp,
                                      scratch.part(thread));
    });
    return;
  }
  const Scratch packed(words / 2, groups);
  in_blocks(
      p,
      [&](const cpu::Head& group, std::size_t index) { cpu::tile_pack_keys_and_values(p, group, packed.words(index)); },
      [&](const cpu::Head& head, std::size_t block, std::size_t group, int thread) {
        cpu::tile_attention_forward(p, unit, head, block, packed.words(group), out, logsumexp, scratch.part(thread));
      });
}

/// bf16 where there is a matrix unit.
bool attention_on_tiles(const cpu::AttentionProblem& p) {
  return p.type == cpu::ElementType::BFloat16 && cpu::tile_unit() != cpu::TileUnit::None;
}

AttentionOutput forward_prepared(const at::Tensor& q, const cpu::AttentionProblem& p) {
  const std::int64_t s = q.size(0), b = q.size(1), n = static_cast<std::int64_t>(p.heads());
  AttentionOutput result{at::empty({s, b, n, q.size(-1)}, q.options()), at::empty({b, n, s}, at::kFloat)};
  const cpu::MutableHeads out = mutable_heads_of(result.out, static_cast<std::int64_t>(p.groups));
  const bool few = p.queries <= cpu::kFewQueries && p.sample_ids == nullptr && p.bias == nullptr;
  (few                     ? forward_few
   : attention_on_tiles(p) ? forward_tiles
                           : forward_blocks)(p, out, result.logsumexp.mutable_data_ptr<float>());
  return result;
}

AttentionOutput forward_fast(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionOptions& options) {
  return forward_prepared(q, prepare(q, side_by_side(k, v), options).problem);
}

/// Whether the kernels read keys or values [blocks, rows, g, d] in their blocks.
bool reads_blocks(const at::Tensor& x) {
  const auto rows = static_cast<std::size_t>(x.size(1));
  return rows >= cpu::kLeastBlock && std::has_single_bit(rows);
}

AttentionOutput forward_in_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& blocks, std::int64_t keys, const AttentionOptions& options) {
  return forward_prepared(q, prepare(q, in_blocks_of(k, v, blocks, keys), options).problem);
}

/// A piece's gradients of queries, the part of each with its index.
struct QueryGradientsOf {
  cpu::QueryGradients shape;
  std::size_t members;
  Scratch sums;
  std::vector<std::uint8_t> touched;

  QueryGradientsOf(const cpu::QueryGradients& one, std::size_t most_members, std::size_t parts)
      : shape(one),
        members(most_members),
        sums(one.floats(most_members), parts),
        touched(parts * most_members * one.blocks()) {}
  cpu::QueryGradients part(std::size_t index) {
    cpu::QueryGradients part = shape;
    part.sums = sums.part(index);
    part.touched = touched.data() + index * members * shape.blocks();
    return part;
  }
};

/// dq, dk and dv. A piece that has all keys of its heads is done with their queries; else those are summed at last.
void compute_pieces(const cpu::AttentionGradient& asked, bool tiles) {
  const cpu::AttentionProblem& p = asked.p;
  const cpu::BackwardPieces& pieces = asked.pieces;
  const bool lanes = pieces.lanes > 1, subsets = pieces.subsets > 1;
  const cpu::TileUnit unit = cpu::tile_unit();
  const std::size_t count = pieces.count(p), threads = static_cast<std::size_t>(cpu::num_threads());
  const Scratch scratch(tiles ? cpu::tile_backward_scratch_floats(p, pieces) : cpu::backward_scratch_floats(p, pieces));
  const Scratch shared(cpu::shared_gradient_floats(p), subsets ? p.batch * p.groups * pieces.subsets : 0);
  QueryGradientsOf queries(tiles ? cpu::tile_query_gradients(p) : cpu::query_gradients(p), pieces.members(p),
                           lanes ? count : threads);
  cpu::for_each_block(static_cast<std::int64_t>(count), [&](std::int64_t i, int thread) {
    const cpu::BackwardPiece piece = pieces.piece(p, static_cast<std::size_t>(i));
    const cpu::QueryGradients dq = queries.part(lanes ? piece.number : static_cast<std::size_t>(thread));
    std::fill_n(dq.touched, piece.members * dq.blocks(), std::uint8_t{0});
    float *part = subsets ? shared.part(piece.number / pieces.lanes) : nullptr, *space = scratch.part(thread);
    if (tiles) {
      cpu::tile_attention_backward(asked, unit, piece, dq, part, space);
    } else {
      cpu::attention_backward(asked, piece, dq, part, space);
    }
    for (std::size_t j = 0; !lanes && j < piece.members * dq.blocks(); ++j) {
      const std::size_t member = j / dq.blocks();
      const cpu::Head head{piece.group.b, piece.group.group, piece.first_member + member};
      cpu::sum_query_gradients(asked, head, member, j % dq.blocks(), {&dq, 1});
    }
  });
  if (lanes) {
    for_query_blocks(p, queries.shape.block, [&](const cpu::Head& head, std::size_t block, int) {
      const cpu::BackwardPiece piece = pieces.piece_of(p, head);
      std::vector<cpu::QueryGradients> of_lanes;
      for (std::size_t lane = 0; lane < pieces.lanes; ++lane) of_lanes.push_back(queries.part(piece.number + lane));
      cpu::sum_query_gradients(asked, head, head.member - piece.first_member, block, of_lanes);
    });
  }
  if (!subsets) return;
  cpu::for_each_block(static_cast<std::int64_t>(p.batch * p.groups), [&](std::int64_t i, int) {
    cpu::sum_shared_gradients(asked, group_at(p, i), shared.part(static_cast<std::size_t>(i) * pieces.subsets));
  });
}

void backward_fast(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                   const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias) {
  Prepared prepared = prepare(q, side_by_side(k, v), options);
  cpu::AttentionProblem& p = prepared.problem;
  at::Tensor of_biases;  // by sample
  if (options.bias.defined()) {
    of_biases = at::zeros({q.size(1), prepared.bias.size(0), prepared.bias.size(1)}, prepared.bias.options());
    p.dbias = of_biases.mutable_data_ptr<float>();
  }
  const std::int64_t groups = k.size(2);
  const bool tiles = attention_on_tiles(p);
  const cpu::Heads dout_heads = heads_of(dout, groups), out_heads = heads_of(forward.out, groups);
  const at::Tensor delta = at::empty(forward.logsumexp.sizes(), at::kFloat);
  const cpu::AttentionGradient asked{
      .p = p,
      .pieces = tiles ? cpu::tile_attention_backward_pieces(p) : cpu::attention_backward_pieces(p),
      .dout = dout_heads,
      .logsumexp_bns = forward.logsumexp.const_data_ptr<float>(),
      .delta_bns = delta.const_data_ptr<float>(),
      .dq = mutable_heads_of(dq, groups),
      .dk = mutable_heads_of(dk, groups),
      .dv = mutable_heads_of(dv, groups)};
  for_query_blocks(p, cpu::kQueryBlock, [&](const cpu::Head& head, std::size_t block, int) {
    const std::size_t q0 = block * cpu::kQueryBlock;
    cpu::softmax_deltas(p, head, q0, std::min(q0 + cpu::kQueryBlock, p.queries), dout_heads, out_heads,
                        delta.mutable_data_ptr<float>());
  });
  compute_pieces(asked, tiles);
  if (dbias.defined()) dbias.copy_(of_biases.sum(0).narrow(1, 0, dbias.size(1)));
}

}  // namespace

namespace cpu {

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  check_groups(q, k);
  return can_attend(options, q, k, v) ? forward_fast(q, k, v, options) : reference::attention(q, k, v, options);
}

AttentionOutput attention_over_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& blocks, std::int64_t keys, const AttentionOptions& options) {
  check_groups(q, k);
  if (can_attend(options, q, k, v) && keys > 0 && reads_blocks(k) && options.dropout.p == 0)
    return forward_in_blocks(q, k, v, blocks, keys, options);
  return reference::attention_over_blocks(q, k, v, blocks, keys, options);
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias) {
  check_groups(q, k);
  if (can_attend(options, q, k, v, dout, forward.out, dq, dk, dv))
    return backward_fast(dout, q, k, v, forward, options, dq, dk, dv, dbias);
  reference::attention_backward(dout, q, k, v, forward, options, dq, dk, dv, dbias);
}

}  // namespace cpu
}  // namespace megatron::kernels
