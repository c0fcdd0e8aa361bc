#include "megatron/checkpoint/save/part_copies.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <span>

#include "megatron/base/machine/out_of_memory.h"
#include "megatron/checkpoint/files/node_folder.h"
#include "megatron/checkpoint/save/coordinator.h"
#include "megatron/checkpoint/slices/save_plan.h"

namespace megatron::checkpoint {
namespace {

constexpr std::uint64_t kChunkBytes = std::uint64_t{8} << 20;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

at::Tensor chunk_on(at::Device device, std::uint64_t bytes) {
  return at::zeros({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device));
}

}  // namespace

void PartCopies::begin(const std::filesystem::path& folder, const plan::Nodes& nodes,
                       const std::vector<std::uint64_t>& bytes) {
  sent_.clear();
  kept_.clear();
  sends_first_ = plan::node_of(nodes, world_.rank()) % 2 == 0;
  failure_.clear();
  rounds_ = round_ = 0;
  for (const plan::FileCopy& copy : plan::neighbour_copies(nodes, bytes)) {
    const std::uint64_t size = bytes[static_cast<std::size_t>(copy.from)];
    rounds_ = std::max(rounds_, (size + kChunkBytes - 1) / kChunkBytes);
    const std::filesystem::path path = folder / data_file_name(copy.from);
    if (copy.from == world_.rank()) sent_.push_back({.peer = copy.to, .path = path, .size = size});
    if (copy.to == world_.rank()) kept_.push_back({.peer = copy.from, .path = path, .size = size});
  }
}

std::uint64_t PartCopies::chunk_of(const PeerFile& file) const {
  const std::uint64_t begin = std::min(file.size, round_ * kChunkBytes);
  return std::min(kChunkBytes, file.size - begin);
}

void PartCopies::attempt_io(const std::function<void()>& work) {
  if (!failure_.empty()) return;
  try {
    work();
  } catch (const std::exception& error) {
    failure_ = message_of(error);
  }
}

void PartCopies::advance() {
  const std::uint64_t begin = round_ * kChunkBytes;
  const auto send = [&] {
    for (PeerFile& file : sent_) {
      if (chunk_of(file) == 0) continue;
      const at::Tensor chunk = chunk_on(at::kCPU, chunk_of(file));
      attempt_io([&] { read_bytes(file.path, begin, bytes_of(chunk)); });
      file.chunk = chunk.to(device_);
      file.work = world_.send_async(file.chunk, file.peer);
    }
  };
  // Every second node sends first: a transport may hold a rank's messages in one order, so that a send waits for its
  // receive (NCCL).
  if (sends_first_) send();
  for (PeerFile& file : kept_) {
    if (chunk_of(file) == 0) continue;
    file.chunk = chunk_on(device_, chunk_of(file));
    file.work = world_.recv_async(file.chunk, file.peer);
  }
  if (!sends_first_) send();
  for (std::vector<PeerFile>* files : {&sent_, &kept_}) {
    for (PeerFile& file : *files) {
      if (!file.work) continue;
      file.work->wait();
      file.work.reset();
      if (files == &kept_) attempt_io([&] { write_bytes(file.path, begin, bytes_of(file.chunk.cpu())); });
      file.chunk.reset();
    }
  }
  ++round_;
}

std::string PartCopies::outcome() const { return failure_.empty() ? done_message("") : failed_message(failure_); }

}  // namespace megatron::checkpoint
