#include "megatron/checkpoint/save/snapshot.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>

namespace megatron::checkpoint {
namespace {

constexpr std::int64_t kAlignment = 64;  // of each tensor in the spare memory

bool readable_in_place(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

}  // namespace

void Snapshot::begin(std::vector<at::Tensor> tensors) {
  const std::lock_guard lock(mutex_);
  parts_.clear();
  next_ = offset_ = 0;
  std::vector<std::size_t> elsewhere;
  for (at::Tensor& tensor : tensors) {
    const bool in_place = readable_in_place(tensor);
    if (!in_place) elsewhere.push_back(parts_.size());
    const auto* const data = in_place ? static_cast<const std::byte*>(tensor.const_data_ptr()) : nullptr;
    parts_.push_back({data, static_cast<std::size_t>(tensor.nbytes()), std::move(tensor), false});
  }
  copy_aside(elsewhere);
}

void Snapshot::freeze() {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> left;
  for (std::size_t k = next_; k < parts_.size(); ++k)
    if (!parts_[k].spare) left.push_back(k);
  copy_aside(left);
}

// Under the mutex. Parts that are in the spare memory already stay: the new ones come behind them.
void Snapshot::copy_aside(const std::vector<std::size_t>& parts) {
  if (parts.empty()) return;
  const c10::NoGradGuard no_grad;
  const auto rounded = [](std::size_t size) {
    return (static_cast<std::int64_t>(size) + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::int64_t total = 0;
  bool on_device = false, has_spare = false;
  for (const TensorBytes& part : parts_) has_spare = has_spare || part.spare;
  for (const std::size_t k : parts) {
    total += rounded(parts_[k].size);
    on_device = on_device || !parts_[k].owner.is_cpu();
  }
  // A part that is there keeps its own hold of the memory that it is in.
  if (has_spare || !spare_.defined() || spare_.numel() < total)
    spare_ = at::empty({total}, at::TensorOptions(at::kByte).pinned_memory(on_device));
  std::int64_t place = 0;
  for (const std::size_t k : parts) {
    TensorBytes& part = parts_[k];
    const at::Tensor copy =
        spare_.narrow(0, place, static_cast<std::int64_t>(part.size)).view(part.owner.scalar_type());
    copy.view(part.owner.sizes()).copy_(part.owner);
    part = {static_cast<const std::byte*>(copy.const_data_ptr()), part.size, copy, true};
    place += rounded(part.size);
  }
}

std::size_t Snapshot::read(std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  std::size_t done = 0;
  while (done < into.size() && next_ < parts_.size()) {
    const TensorBytes& part = parts_[next_];
    const std::size_t count = std::min(into.size() - done, part.size - offset_);
    if (count > 0) std::memcpy(into.data() + done, part.data + offset_, count);
    done += count;
    offset_ += count;
    if (offset_ < part.size) break;
    ++next_;
    offset_ = 0;
  }
  return done;
}

void Snapshot::end() {
  const std::lock_guard lock(mutex_);
  parts_.clear();
  next_ = offset_ = 0;
}

}  // namespace megatron::checkpoint
