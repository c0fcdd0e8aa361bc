#include "megatron/kernels/low_rank/low_rank.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators/few_rows.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/products/low_rank.h"
#include "megatron/kernels/cpu/products/matrix_of.h"

namespace megatron::kernels {
namespace {

constexpr auto kPanel = static_cast<std::int64_t>(cpu::kLowRankPanel);
constexpr std::int64_t kPieceBytes = 12 << 10;  // of a matrix that one piece of work reads
constexpr std::int64_t kLine = 16;              // floats: what threads write is apart

std::int64_t panels_of(std::int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }
std::int64_t in_lines(std::int64_t floats) { return (floats + kLine - 1) / kLine * kLine; }

/// [groups * length, depth] as [groups * panels * kPanel, depth], zeros behind each group.
at::Tensor padded(const at::Tensor& x, const LowRank::Part& part) {
  const std::int64_t behind = panels_of(part.length) * kPanel - part.length;
  return at::constant_pad_nd(x.reshape({part.groups, part.length, -1}), {0, 0, 0, behind});
}

/// Waits for what another thread that is at work makes true: no longer than one piece of work.
template <class Condition>
void wait_until(const Condition& holds) {
  constexpr int kSpins = 4000;  // about 100 us; then another thread may have this one's core
  for (int i = 0; !holds(); ++i)
    if (i < kSpins)
      hwy::Pause();
    else
      std::this_thread::yield();
}

}  // namespace

bool takes_low_rank(const at::Tensor& x) { return cpu::fast_as(x.scalar_type(), x); }

LowRank::LowRank(const std::vector<Part>& parts, double scale) : scale_(static_cast<float>(scale)) {
  std::vector<at::Tensor> copies, factors;
  std::int64_t b_at = 0, factor_at = 0;
  for (const Part& part : parts) {
    const std::int64_t rank = part.a.size(0), bytes = part.a.size(1) * part.a.element_size();
    const std::int64_t step = std::max<std::int64_t>(kPieceBytes / bytes / 4 * 4, 4);
    inputs_ = part.a.size(1);
    for (std::int64_t first = 0; first < rank; first += step)
      down_.push_back({a_.size(), first, std::min(step, rank - first), ranks_ + first});
    for (std::int64_t group = 0; group < part.groups; ++group)
      for (std::int64_t done = 0; done < part.length; done += kPanel) {
        const std::int64_t column = group * part.group_outputs + part.offset + done;
        panels_.push_back({.column = column,
                           .count = std::min(kPanel, part.length - done),
                           .z = ranks_,
                           .rank = rank,
                           .b = b_at,
                           .factor = part.factor.defined() ? factor_at : -1});
        outputs_ = std::max(outputs_, column + panels_.back().count);
        b_at += rank * kPanel;
        if (part.factor.defined()) factor_at += kPanel;
      }
    copies.push_back(padded(part.b, part).view({-1, kPanel, rank}).transpose(1, 2).reshape(-1));
    if (part.factor.defined()) factors.push_back(padded(part.factor.to(at::kFloat), part).reshape(-1));
    a_.push_back(part.a);
    ranks_ += rank;
  }
  b_ = at::cat(copies);
  if (!factors.empty()) factors_ = at::cat(factors);
  std::ranges::sort(panels_, {}, &Panel::column);  // as a product gives outputs
  const std::int64_t panel_bytes = kPanel * b_.element_size();
  for (std::size_t first = 0; first < panels_.size();) {
    std::size_t last = first;
    for (std::int64_t bytes = 0; last < panels_.size() && bytes < kPieceBytes; ++last)
      bytes += panels_[last].rank * panel_bytes;
    const Panel& end = panels_[last - 1];
    up_.push_back({first, last - first, panels_[first].column, end.column + end.count});
    first = last;
  }
}

/// One call for some rows of y and x: what threads share.
class LowRankCall {
 public:
  /// `product`: of x with a weight, which is to be in y first; null: it is.
  LowRankCall(const at::Tensor& y, const at::Tensor& x, std::span<const LowRankRows> groups, at::Tensor& scratch,
              const cpu::ProductPieces* product = nullptr);
  /// Once, in pieces of work that are handed out in this order: those of A, of the product, of B. A piece of B waits
  /// for all of A and for the outputs that it adds to, which are done or another thread is at.
  void run();

 private:
  /// Rows that have the same matrices, and where in the scratch what they read and what their A give is.
  struct Group {
    const LowRank* matrices;
    const std::int64_t* rows;
    std::int64_t count;
    const float* x;
    std::int64_t x_row;
    float* z;
  };
  /// Calls fn(group, number there) of what is number i in the lists of all groups.
  template <class List, class Fn>
  void with_number(List LowRank::*list, std::int64_t i, const Fn& fn) const {
    for (const Group& group : groups_) {
      const std::int64_t count = std::ssize(group.matrices->*list);
      if (i < count) return fn(group, (group.matrices->*list)[static_cast<std::size_t>(i)]);
      i -= count;
    }
  }
  static std::int64_t z_row(const Group& group) { return in_lines(group.matrices->ranks_); }
  void multiply_by_a(const Group& group, const LowRank::Rows& piece) const;
  void multiply_by_b(const Group& group, const LowRank::Panels& piece) const;
  /// Until y has the outputs that `piece` adds to, and z all that A gives.
  void wait_for(const LowRank::Panels& piece) const;

  cpu::MutableMatrix y_;
  const cpu::ProductPieces* product_;
  std::vector<Group> groups_;
  std::int64_t down_ = 0, up_ = 0, work_ = 0;
  std::atomic<std::int64_t> down_done_ = 0;
  std::vector<std::atomic<bool>> product_done_;
};

LowRankCall::LowRankCall(const at::Tensor& y, const at::Tensor& x, std::span<const LowRankRows> groups,
                         at::Tensor& scratch, const cpu::ProductPieces* product)
    : y_(cpu::mutable_matrix(y)),
      product_(product),
      product_done_(product == nullptr ? 0 : static_cast<std::size_t>(product->count())) {
  const std::int64_t inputs = x.size(1);
  std::int64_t floats = 0;
  for (const LowRankRows& each : groups) {
    const LowRank& matrices = *each.matrices;
    const auto own = static_cast<std::int64_t>(each.rows.size());
    if (matrices.inputs_ != inputs || matrices.outputs_ > y.size(1) || matrices.b_.scalar_type() != y.scalar_type())
      throw std::logic_error("low-rank matrices are of another layer than x and y");
    if (own > 0 && std::ranges::max(each.rows) >= y.size(0))
      throw std::logic_error(concat("low-rank matrices of row ", std::ranges::max(each.rows), " of ", y.size(0)));
    groups_.push_back({.matrices = &matrices,
                       .rows = own > 0 ? each.rows.data() : nullptr,
                       .count = own > 0 ? own : y.size(0),
                       .x = nullptr,
                       .x_row = inputs,
                       .z = nullptr});
    floats += groups_.back().count * (in_lines(inputs) + z_row(groups_.back()));
    down_ += std::ssize(matrices.down_);
    up_ += std::ssize(matrices.up_);
    work_ += groups_.back().count * matrices.ranks_ * inputs;
  }
  if (!scratch.defined() || scratch.numel() < floats) scratch = at::empty({floats}, at::kFloat);
  float* free = scratch.mutable_data_ptr<float>();
  const auto* from = static_cast<const std::byte*>(x.const_data_ptr());
  const cpu::ElementType type = *cpu::element_of(x);
  const auto depth = static_cast<std::size_t>(inputs);
  for (Group& group : groups_) {
    group.z = free;
    free += group.count * z_row(group);
    if (const float* const arranged = product == nullptr ? nullptr : product->arranged_inputs(type);
        arranged != nullptr && group.rows == nullptr) {
      group.x = arranged;
      continue;
    }
    group.x = free;
    group.x_row = in_lines(inputs);
    for (std::int64_t i = 0; i < group.count; ++i, free += in_lines(inputs)) {
      const auto row = static_cast<std::size_t>(group.rows == nullptr ? i : group.rows[i]);
      cpu::arrange_few_rows(from + row * depth * cpu::element_size(type), type, type, free, 1, depth);
    }
  }
}

void LowRankCall::multiply_by_a(const Group& group, const LowRank::Rows& piece) const {
  const at::Tensor& a = group.matrices->a_[piece.part];
  cpu::few_rows_product({static_cast<std::size_t>(group.count),
                         static_cast<std::size_t>(piece.count),
                         static_cast<std::size_t>(a.size(1)),
                         {group.x, cpu::ElementType::Float32, group.x_row, 1},
                         cpu::matrix(a).transposed().at(0, static_cast<std::size_t>(piece.first)),
                         {group.z + piece.z, cpu::ElementType::Float32, z_row(group)},
                         false});
}

void LowRankCall::multiply_by_b(const Group& group, const LowRank::Panels& piece) const {
  const LowRank& m = *group.matrices;
  const auto* const b = static_cast<const std::byte*>(m.b_.const_data_ptr());
  const float* const factors = m.factors_.defined() ? m.factors_.const_data_ptr<float>() : nullptr;
  cpu::LowRankOutputs out{.type = y_.type,
                          .y = y_.data,
                          .y_row = static_cast<std::size_t>(y_.row),
                          .rows = group.rows,
                          .count = static_cast<std::size_t>(group.count),
                          .z = nullptr,
                          .z_row = static_cast<std::size_t>(z_row(group)),
                          .scale = m.scale_};
  for (std::size_t i = piece.first; i < piece.first + piece.count; ++i) {
    const LowRank::Panel& panel = m.panels_[i];
    out.z = group.z + panel.z;
    cpu::add_low_rank_panel({.column = static_cast<std::size_t>(panel.column),
                             .count = static_cast<std::size_t>(panel.count),
                             .rank = static_cast<std::size_t>(panel.rank),
                             .b = b + static_cast<std::size_t>(panel.b) * cpu::element_size(y_.type),
                             .factor = panel.factor < 0 ? nullptr : factors + panel.factor},
                            out);
  }
}

void LowRankCall::wait_for(const LowRank::Panels& piece) const {
  wait_until([&] { return down_done_.load(std::memory_order_acquire) == down_; });
  if (product_ == nullptr) return;
  for (std::int64_t i = piece.begin / product_->outputs(); i * product_->outputs() < piece.end; ++i)
    wait_until([&] { return product_done_[static_cast<std::size_t>(i)].load(std::memory_order_acquire); });
}

void LowRankCall::run() {
  constexpr std::int64_t kWorthThreads = 8192;  // products of two numbers
  const std::int64_t products = std::ssize(product_done_), count = down_ + products + up_;
  const auto compute = [&](std::int64_t i, int thread) {
    if (i < down_) {
      with_number(&LowRank::down_, i,
                  [&](const Group& group, const LowRank::Rows& piece) { multiply_by_a(group, piece); });
      down_done_.fetch_add(1, std::memory_order_release);
    } else if (i < down_ + products) {
      product_->compute(i - down_, thread);
      product_done_[static_cast<std::size_t>(i - down_)].store(true, std::memory_order_release);
    } else {
      with_number(&LowRank::up_, i - down_ - products, [&](const Group& group, const LowRank::Panels& piece) {
        wait_for(piece);
        multiply_by_b(group, piece);
      });
    }
  };
  if (work_ > kWorthThreads || products > 0) return cpu::for_each_in_order(count, compute);
  for (std::int64_t i = 0; i < count; ++i) compute(i, 0);
}

void add_low_rank(const at::Tensor& y, const at::Tensor& x, std::span<const LowRankRows> groups, at::Tensor& scratch) {
  LowRankCall(y, x, groups, scratch).run();
}

void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& wide,
                     std::span<const LowRankRows> groups, at::Tensor& scratch) {
  cpu::multiply_with_low_rank(cpu::FewRowsPieces(y, x, w, wide), y, x, groups, scratch);
}

void cpu::multiply_with_low_rank(const ProductPieces& product, const at::Tensor& y, const at::Tensor& x,
                                 std::span<const LowRankRows> groups, at::Tensor& scratch) {
  LowRankCall(y, x, groups, scratch, &product).run();
}

}  // namespace megatron::kernels
