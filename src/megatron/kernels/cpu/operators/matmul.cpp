#include "megatron/kernels/matmul.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/operators/few_rows.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/products/epilogue.h"
#include "megatron/kernels/cpu/products/matrix_of.h"
#include "megatron/kernels/cpu/products/tile_product.h"
#include "megatron/kernels/cpu/products/tiles.h"
#include "megatron/kernels/groups.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/kernels/reference.h"
#include "megatron/kernels/tile_matmul.h"

namespace megatron::kernels {
namespace {

/// Rows of x up to which a weight is read row by row for all of them. 16-bit weights would else be widened for few
/// uses.
constexpr std::int64_t kFewRows = 16, kFewRowsOfHalf = 32, kFewRowsBesideTiles = 8;
/// Rows whose part of a weight gradient the matrix unit sums at once: their columns are packed piece by piece.
constexpr std::int64_t kGradientRows = 2048;

/// [.., k] as [rows, k]; copies only what is not laid out row by row.
at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor with_last_dim(const at::Tensor& y_rows, const at::Tensor& like) {
  std::vector<std::int64_t> shape(like.sizes().begin(), like.sizes().end());
  shape.back() = y_rows.size(1);
  return y_rows.view(shape);
}

bool is_half(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

/// Whether the own kernels may read x.
bool readable(const at::Tensor& x) {
  return x.is_cpu() && (is_half(x) || x.scalar_type() == at::kFloat) && cpu::enabled();
}

/// The length of the parts when `size` is split into parts of at most `most`, whole multiples of `multiple`, of which
/// `most` is one.
std::int64_t part_of(std::int64_t size, std::int64_t most, std::int64_t multiple) {
  const std::int64_t parts = std::max<std::int64_t>((size + most - 1) / most, 1);
  return (size + parts * multiple - 1) / (parts * multiple) * multiple;
}
std::int64_t parts_of(std::int64_t size, std::int64_t part) { return (size + part - 1) / part; }

constexpr std::int64_t kRowMultiple = 6, kColumnMultiple = 64;
static_assert(cpu::kBlockRows % kRowMultiple == 0 && cpu::kBlockColumns % kColumnMultiple == 0);

/// c [rows, columns] = or += a b, block by block of c over the threads. Operands may be of any readable dtype. With an
/// epilogue nothing is added to.
void multiply(const at::Tensor& c, const at::Tensor& a_any, const at::Tensor& b_any, bool accumulate,
              const cpu::Epilogue& epilogue = {}) {
  const at::Tensor a = cpu::laid_out(a_any), b = cpu::laid_out(b_any);
  // Two halves, of the product or of what its gradient goes to, have their columns in common.
  const std::int64_t rows = c.size(0), columns = epilogue.half != 0 ? epilogue.half : c.size(1);
  const std::int64_t most_columns = cpu::kBlockColumns / (epilogue.two_halves() ? 2 : 1);
  constexpr std::int64_t kLeast = 128, kBlocksOfAThread = 3;
  std::int64_t row_part = part_of(rows, cpu::kBlockRows, kRowMultiple),
               column_part = part_of(columns, most_columns, kColumnMultiple);
  while (parts_of(rows, row_part) * parts_of(columns, column_part) < kBlocksOfAThread * cpu::num_threads() &&
         std::max(row_part, column_part) > kLeast) {
    if (row_part >= column_part)
      row_part = part_of(rows, row_part / 2, kRowMultiple);
    else
      column_part = part_of(columns, column_part / 2, kColumnMultiple);
  }
  const std::int64_t across = parts_of(columns, column_part);
  const at::Tensor scratch =
      at::empty({cpu::num_threads(), static_cast<std::int64_t>(cpu::kProductScratch)}, at::kFloat);
  const cpu::Product whole{static_cast<std::size_t>(rows),
                           static_cast<std::size_t>(columns),
                           static_cast<std::size_t>(a.size(1)),
                           cpu::matrix(a),
                           cpu::matrix(b),
                           cpu::mutable_matrix(c),
                           accumulate};
  cpu::for_each_block(parts_of(rows, row_part) * across, [&](std::int64_t i, int thread) {
    const auto row = static_cast<std::size_t>(i / across * row_part);
    const auto column = static_cast<std::size_t>(i % across * column_part);
    cpu::Product block = whole;
    block.rows = std::min(static_cast<std::size_t>(row_part), whole.rows - row);
    block.columns = std::min(static_cast<std::size_t>(column_part), whole.columns - column);
    block.a = whole.a.at(row, 0);
    block.b = whole.b.at(0, column);
    block.c = whole.c.at(row, column);
    cpu::product_block(block, epilogue.at(row, column, whole.c.type),
                       scratch.mutable_data_ptr<float>() + thread * static_cast<std::int64_t>(cpu::kProductScratch));
  });
}

at::Tensor skinny_product(const at::Tensor& x, const at::Tensor& w) {
  at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  const bool as_it_is = !is_half(x) && !is_half(w);
  few_rows_linear(y, x, w, as_it_is ? at::Tensor() : at::empty(x.sizes(), x.options().dtype(at::kFloat)));
  return y;
}

/// Whether a b is computed by own kernels of float32 arithmetic.
bool own_product(const at::Tensor& a, const at::Tensor& b) {
  return readable(a) && readable(b) && (is_half(a) || cpu::own_float32_products());
}

/// a b of a's dtype, without the unit.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!own_product(a, b)) return at::mm(a, b);
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  multiply(c, a, b, false);
  return c;
}

/// Where a linear layer's product is computed, forward or backward.
struct Way {
  enum class Kind : std::uint8_t { FewRows, Tiles, Own, Library, Quantized };
  Kind kind;
  at::Tensor packed = {};                      ///< of Tiles: the right operand, where it is kept
  const QuantizedMatrix* quantized = nullptr;  ///< of Quantized: the weight
};
Way way_of(const at::Tensor& rows, const at::Tensor& w, bool forward, PackedWeight* packed) {
  if (packed != nullptr && packed->quantized() != nullptr) {
    if (!forward) throw std::logic_error("a weight in fewer bits has no way back");
    return {.kind = Way::Kind::Quantized, .quantized = packed->quantized()};
  }
  if (forward && few_rows(rows.size(0), w) && readable(rows)) return {Way::Kind::FewRows};
  if (!on_tiles(rows, w)) return {own_product(rows, w) ? Way::Kind::Own : Way::Kind::Library};
  if (packed == nullptr || !keeps_packed(w)) return {Way::Kind::Tiles};
  if (!packed->makes_copy(rows.size(0), forward))
    return {Way::Kind::Tiles, forward ? packed->kept_for_output(w) : at::Tensor()};
  return {Way::Kind::Tiles, forward ? packed->for_output(w) : packed->for_input_gradient(w)};
}

/// The product `rows` b alone.
at::Tensor product(const Way& way, const at::Tensor& rows, const at::Tensor& w, bool forward) {
  if (way.kind == Way::Kind::FewRows) return skinny_product(rows.contiguous(), w);
  if (way.kind == Way::Kind::Quantized) return kernels::linear(rows, *way.quantized);
  const at::Tensor b = forward ? w.t() : w;
  if (way.kind != Way::Kind::Tiles) return product(rows, b);
  at::Tensor c = at::empty({rows.size(0), b.size(1)}, rows.options());
  tile_matmul(c, rows, b, way.packed, false);
  return c;
}

/// c = the product with an epilogue, where `way` takes one.
void product_into(const at::Tensor& c, const Way& way, const at::Tensor& rows, const at::Tensor& b,
                  const cpu::Epilogue& epilogue) {
  if (way.kind == Way::Kind::Tiles)
    tile_matmul(c, rows, b, way.packed, false, epilogue);
  else
    multiply(c, rows, b, false, epilogue);
}

/// Whether `way` takes an epilogue on these buffers, of which some may be undefined. `half`: Epilogue::half.
template <class... Buffers>
bool takes_epilogue(const Way& way, const at::Tensor& rows, std::int64_t half, const Buffers&... buffers) {
  const bool whole_panels = half % static_cast<std::int64_t>(cpu::kPanelLines) == 0;
  const bool on_tiles = whole_panels && (half == 0 || rows.scalar_type() != at::kFloat || way.packed.defined() ||
                                         fits_packed(at::kFloat, 2 * half, rows.size(1)));
  const bool computes = way.kind == Way::Kind::Own || (way.kind == Way::Kind::Tiles && on_tiles);
  return computes && cpu::fast_as(rows.scalar_type(), buffers...);
}

/// grad = or += dy^T x by own kernels.
void add_weight_gradient(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  if (!on_tiles(dy, x)) return multiply(grad, dy.t(), x, accumulate);
  // The rounding of a 16-bit gradient happens once.
  const std::int64_t rows = x.size(0), step = is_half(grad) ? std::max<std::int64_t>(rows, 1) : kGradientRows;
  for (std::int64_t begin = 0; begin < std::max<std::int64_t>(rows, 1); begin += step) {
    const std::int64_t count = std::min(step, rows - begin);
    const at::Tensor part = x.narrow(0, begin, count);
    // Large float32 operands are cut, unless the sum would be rounded more than once by that.
    const bool may_be_cut = part.scalar_type() == at::kFloat && !is_half(grad);
    tile_matmul(grad, dy.narrow(0, begin, count).t(), part, may_be_cut ? at::Tensor() : pack_for_tiles(part),
                accumulate || begin > 0);
  }
}

}  // namespace

std::int64_t most_few_rows(const at::Tensor& w, const PackedWeight* packed) {
  if (packed != nullptr && packed->quantized() != nullptr) return kFewQuantizedRows;
  if (!readable(w) || w.stride(1) != 1) return 0;
  return !is_half(w) ? kFewRows : on_tiles(w, w) ? kFewRowsBesideTiles : kFewRowsOfHalf;
}

bool few_rows(std::int64_t rows, const at::Tensor& w, const PackedWeight* packed) {
  return rows <= most_few_rows(w, packed);
}

void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& wide) {
  const cpu::FewRowsPieces pieces(y, x, w, wide);
  cpu::for_each_block(pieces.count(), [&](std::int64_t i, int thread) { pieces.compute(i, thread); });
}

namespace cpu {

FewRowsPieces::FewRowsPieces(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& wide)
    : whole_{static_cast<std::size_t>(x.size(0)),
             static_cast<std::size_t>(w.size(0)),
             static_cast<std::size_t>(w.size(1)),
             {x.const_data_ptr(), ElementType::Float32, w.size(1), 1},
             matrix(w).transposed(),
             mutable_matrix(y),
             false} {
  if (is_half(x) || is_half(w)) {
    float* const to = wide.mutable_data_ptr<float>();
    arrange_few_rows(whole_.a.data, *element_of(x), *element_of(w), to, whole_.rows, whole_.depth);
    whole_.a.data = to;
  }
  constexpr std::int64_t kWeightBytes = 1 << 16;  // of one piece of work
  const std::int64_t row_bytes = std::max<std::int64_t>(w.size(1) * w.element_size(), 1);
  const auto together = static_cast<std::int64_t>(kFewRowsStep);
  outputs_ = (kWeightBytes / row_bytes / together + 1) * together;
  count_ = parts_of(w.size(0), outputs_);
}

void FewRowsPieces::compute(std::int64_t i, int /*thread*/) const {
  const auto column = static_cast<std::size_t>(i * outputs_);
  Product piece = whole_;
  piece.columns = std::min(static_cast<std::size_t>(outputs_), whole_.columns - column);
  piece.b = whole_.b.at(0, column);
  piece.c = whole_.c.at(0, column);
  few_rows_product(piece);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, PackedWeight* packed, const at::Tensor& bias) {
  const at::Tensor rows = rows_of(x);
  const Way way = way_of(rows, w, true, packed);
  if (!bias.defined()) return with_last_dim(product(way, rows, w, true), x);
  if (!takes_epilogue(way, rows, 0, bias)) return with_last_dim(product(way, rows, w, true), x).add_(bias);
  const at::Tensor y = at::empty({rows.size(0), w.size(0)}, x.options());
  product_into(y, way, rows, w.t(), {.kind = Epilogue::Kind::AddBias, .bias = bias.const_data_ptr()});
  return with_last_dim(y, x);
}

ActivatedOutput linear_activation(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, Activation form,
                                  bool gated, PackedWeight* packed) {
  const at::Tensor rows = rows_of(x);
  const Way way = way_of(rows, w, true, packed);
  const std::int64_t features = w.size(0) / (gated ? 2 : 1), half = gated ? features : 0;
  if (!takes_epilogue(way, rows, half, bias)) {
    at::Tensor u = with_last_dim(product(way, rows, w, true), x);
    at::Tensor y = gated ? cpu::bias_gated_activation(u, bias, form) : cpu::bias_activation(u, bias, form);
    return {u, y};
  }
  const at::Tensor u = at::empty({rows.size(0), w.size(0)}, x.options());
  const at::Tensor y = at::empty({rows.size(0), features}, x.options());
  product_into(u, way, rows, w.t(),
               {.kind = Epilogue::Kind::Activate,
                .form = form,
                .half = half,
                .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                .y = y.mutable_data_ptr(),
                .y_row = features});
  return {with_last_dim(u, x), with_last_dim(y, x)};
}

at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& w, PackedWeight* packed) {
  const at::Tensor rows = rows_of(dy);
  return with_last_dim(product(way_of(rows, w, false, packed), rows, w, false), dy);
}

ActivatedOutput linear_activation_gradient(const at::Tensor& dz, const at::Tensor& w, const at::Tensor& u,
                                           Activation form, bool gated, bool again, PackedWeight* packed) {
  const at::Tensor rows = rows_of(dz);
  const Way way = way_of(rows, w, false, packed);
  const std::int64_t features = w.size(1), half = gated ? features : 0;
  if (!takes_epilogue(way, rows, half, u)) {
    const at::Tensor dy = with_last_dim(product(way, rows, w, false), dz);
    ActivatedOutput out{gated ? cpu::gated_activation_backward(dy, u, form) : cpu::activation_backward(dy, u, form),
                        {}};
    if (again) out.y = gated ? cpu::gated_activation(u, form) : cpu::activation(u, form);
    return out;
  }
  const at::Tensor du = at::empty(u.sizes(), u.options());
  const at::Tensor y = again ? at::empty({rows.size(0), features}, u.options()) : at::Tensor();
  product_into(du.view({-1, u.size(-1)}), way, rows, w,
               {.kind = Epilogue::Kind::GoBack,
                .form = form,
                .half = half,
                .u = u.const_data_ptr(),
                .u_row = u.size(-1),
                .y = again ? y.mutable_data_ptr() : nullptr,
                .y_row = features});
  return {du, again ? with_last_dim(y, dz) : y};
}

namespace {

/// Of one group: part = `rows` w^T (`forward`) or `rows` w.
void group_product(at::Tensor part, const Way& way, const at::Tensor& rows, const at::Tensor& w, bool forward) {
  const at::Tensor b = forward ? w.t() : w;
  if (way.kind == Way::Kind::Library)
    at::mm_out(part, rows, b);
  else if (way.kind == Way::Kind::Quantized)
    throw std::logic_error("experts are not held in blocks");
  else if (way.kind == Way::Kind::FewRows)
    few_rows_linear(part, rows, w,
                    is_half(rows) || is_half(w) ? at::empty(rows.sizes(), rows.options().dtype(at::kFloat)) : rows);
  else
    product_into(part, way, rows, b, {});
}

PackedWeight* packed_of(const Groups& groups, std::size_t g) {
  return groups.packed.empty() ? nullptr : groups.packed[g];
}

at::Tensor bias_of(const Groups& groups, std::size_t g) {
  return groups.biases.empty() ? at::Tensor() : groups.biases[g];
}

/// The product of each group, written where it belongs.
at::Tensor grouped_product(const at::Tensor& rows, const Groups& groups, bool forward) {
  const at::Tensor c = at::empty({rows.size(0), groups.weights.front().size(forward ? 0 : 1)}, rows.options());
  const at::Tensor all = rows.contiguous();
  for_each_group(groups, [&](std::size_t g, std::int64_t begin, std::int64_t count) {
    const at::Tensor& w = groups.weights[g];
    const at::Tensor a = all.narrow(0, begin, count);
    const Way way = way_of(a, w, forward, packed_of(groups, g));
    const at::Tensor part = c.narrow(0, begin, count), bias = forward ? bias_of(groups, g) : at::Tensor();
    if (bias.defined() && takes_epilogue(way, a, 0, part, bias))
      return product_into(part, way, a, w.t(), {.kind = Epilogue::Kind::AddBias, .bias = bias.const_data_ptr()});
    group_product(part, way, a, w, forward);
    if (bias.defined()) part.add_(bias);
  });
  return c;
}

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x, const Groups& groups) { return grouped_product(x, groups, true); }
at::Tensor grouped_input_gradient(const at::Tensor& dy, const Groups& groups) {
  return grouped_product(dy, groups, false);
}

ActivatedOutput grouped_linear_activation(const at::Tensor& x, const Groups& groups, Activation form, bool gated) {
  const at::Tensor& first = groups.weights.front();
  const auto activated = [&](const at::Tensor& u) {
    return gated ? cpu::gated_activation(u, form) : cpu::activation(u, form);
  };
  if (!on_tiles(x, first) && !own_product(x, first)) {
    const at::Tensor u = grouped_product(x, groups, true);
    return {u, activated(u)};
  }
  const std::int64_t features = first.size(0) / (gated ? 2 : 1), half = gated ? features : 0;
  const at::Tensor all = x.contiguous();
  const at::Tensor u = at::empty({x.size(0), first.size(0)}, x.options());
  const at::Tensor y = at::empty({x.size(0), features}, x.options());
  for_each_group(groups, [&](std::size_t g, std::int64_t begin, std::int64_t count) {
    const at::Tensor& w = groups.weights[g];
    const at::Tensor a = all.narrow(0, begin, count), part = u.narrow(0, begin, count),
                     y_part = y.narrow(0, begin, count);
    const Way way = way_of(a, w, true, packed_of(groups, g));
    const at::Tensor bias = bias_of(groups, g);
    if (takes_epilogue(way, a, half, part, bias)) {
      product_into(part, way, a, w.t(),
                   {.kind = Epilogue::Kind::Activate,
                    .form = form,
                    .half = half,
                    .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                    .y = y_part.mutable_data_ptr(),
                    .y_row = features});
    } else {
      group_product(part, way, a, w, true);
      if (bias.defined()) part.add_(bias);
      y_part.copy_(activated(part));
    }
  });
  return {u, y};
}

void grouped_weight_gradient(const Groups& gradients, const at::Tensor& dy, const at::Tensor& x,
                             const std::vector<double>& betas) {
  for (std::size_t g = 0; g < gradients.weights.size(); ++g)
    if (gradients.offsets[g] == gradients.offsets[g + 1] && betas[g] == 0) gradients.weights[g].zero_();
  for_each_group(gradients, [&](std::size_t g, std::int64_t begin, std::int64_t rows) {
    cpu::linear_weight_gradient(gradients.weights[g], dy.narrow(0, begin, rows), x.narrow(0, begin, rows), betas[g]);
  });
}

void linear_weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta) {
  const at::Tensor dy_rows = rows_of(dy), x_rows = rows_of(x);
  const bool own = readable(grad_w) && readable(dy) && readable(x) && grad_w.stride(1) == 1;
  if (own && (is_half(dy) || on_tiles(dy_rows, x_rows) || cpu::own_float32_products())) {
    if (beta != 0 && beta != 1) grad_w.mul_(beta);
    return add_weight_gradient(grad_w, dy_rows, x_rows, beta != 0);
  }
  reference::linear_weight_gradient(grad_w, dy, x, beta);
}

}  // namespace cpu
}  // namespace megatron::kernels
