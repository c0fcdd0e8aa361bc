#include "megatron/checkpoint/reader.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <span>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/safetensors.h"

namespace megatron::checkpoint {
namespace {

constexpr std::size_t kMaxOpenFiles = 64;                       // of some hundreds that a process may have
constexpr std::size_t kConvertedBytes = std::size_t{64} << 10;  // at once: they stay in the first cache

/// `count` elements of `from` that begin at byte `offset`, converted.
void read_elements(CheckedReader& file, std::uint64_t offset, const std::string& from, const std::string& to,
                   std::byte* into, std::size_t count) {
  const std::size_t from_bytes = dtype_bytes(from), to_bytes = dtype_bytes(to);
  if (from == to) return file.read(offset, {into, count * from_bytes});
  alignas(64) std::byte buffer[kConvertedBytes];
  while (count > 0) {
    const std::size_t part = std::min(count, kConvertedBytes / from_bytes);
    file.read(offset, std::span(buffer).first(part * from_bytes));
    convert(from, buffer, to, into, part);
    offset += part * from_bytes;
    into += part * to_bytes;
    count -= part;
  }
}

}  // namespace

bool is_weight(const std::string& tensor) { return !tensor.starts_with("optimizer."); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text += concat(d == 0 ? "" : ", ", shape[d]);
  return text + "]";
}

Reader::Reader(std::filesystem::path folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)), files_(manifest_.files.size()) {}

const TensorRecord* Reader::find(const std::string& tensor) const {
  const auto found = manifest_.tensors.find(tensor);
  return found == manifest_.tensors.end() ? nullptr : &found->second;
}

std::vector<std::string> Reader::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : manifest_.tensors)
    if (is_weight(name)) names.push_back(name);
  return names;
}

const std::vector<std::int64_t>* Reader::shape(const std::string& tensor) const {
  const TensorRecord* const record = find(tensor);
  return record == nullptr ? nullptr : &record->shape;
}

std::string Reader::dtype(const std::string& tensor) const { return manifest_.tensors.at(tensor).dtype; }

void Reader::expect(const ReadPlan& plan) const {
  try {
    for (const BlockRange& range : plan.blocks)
      file(range.file)
          .expect(range.first * kBlockBytes, (range.end - range.first - 1) * kBlockBytes +
                                                 block_bytes(manifest_.files[range.file], range.end - 1));
  } catch (const Damage& damage) {
    throw with_another(damage, folder_);
  }
}

void Reader::expect(const std::string& tensor, const Box& box) const {
  const TensorRecord& record = manifest_.tensors.at(tensor);
  if (!inside(box, record.shape)) throw std::logic_error(concat("a slice that lies outside of \"", tensor, "\""));
  expect(plan_reads(manifest_, {{&record, box}}));
}

void Reader::read(const std::string& tensor, const Box& box, const at::Tensor& into) const {
  const c10::NoGradGuard no_grad;
  const TensorRecord& record = manifest_.tensors.at(tensor);
  if (!inside(box, record.shape) || into.sizes() != box.shape)
    throw std::logic_error(concat("a slice that lies outside of \"", tensor, "\""));
  const std::string wanted = dtype_name(into.scalar_type());
  if (!converts(record.dtype, wanted))
    throw ConfigError(rule_got_fix(concat(name(), ": \"", printable(tensor), "\" must be ", wanted, "."), record.dtype,
                                   "megatron checkpoint reshard FROM TO --dtype writes it in another dtype"));
  const bool in_place = into.is_cpu() && into.is_contiguous();
  const at::Tensor buffer = in_place ? into : at::empty(box.shape, into.options().device(at::kCPU));
  try {
    fill(record, box, buffer);
  } catch (const Damage& damage) {
    throw with_another(damage, folder_);
  }
  if (!in_place) into.detach().copy_(buffer);
}

void Reader::fill(const TensorRecord& record, const Box& box, const at::Tensor& buffer) const {
  auto* const bytes = static_cast<std::byte*>(buffer.data_ptr());
  const std::string wanted = dtype_name(buffer.scalar_type());
  const std::uint64_t from_bytes = dtype_bytes(record.dtype), to_bytes = dtype_bytes(wanted);
  for (const SliceRecord& slice : record.slices) {
    for_each_shared_run(slice.box, box, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      read_elements(file(slice.file), slice.begin + static_cast<std::uint64_t>(from) * from_bytes, record.dtype, wanted,
                    bytes + static_cast<std::uint64_t>(to) * to_bytes, static_cast<std::size_t>(count));
    });
  }
}

std::uint64_t Reader::bytes_read() const {
  std::uint64_t bytes = read_and_closed_;
  for (const std::size_t index : open_) bytes += files_[index]->bytes_read();
  return bytes;
}

CheckedReader& Reader::file(std::size_t index) const {
  if (files_[index]) return *files_[index];
  if (open_.size() == kMaxOpenFiles) {
    read_and_closed_ += files_[open_.front()]->bytes_read();
    files_[open_.front()].reset();
    open_.pop_front();
  }
  files_[index] = std::make_unique<CheckedReader>(folder_, manifest_.files[index]);
  open_.push_back(index);
  return *files_[index];
}

}  // namespace megatron::checkpoint
