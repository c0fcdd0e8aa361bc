#include "megatron/checkpoint/save/saver.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/text/json.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/files.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/checkpoint/save/coordinator.h"
#include "megatron/checkpoint/save/part_copies.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

std::vector<HeldSlice> describe(const std::vector<ShardedTensor>& tensors) {
  std::vector<HeldSlice> slices;
  for (const ShardedTensor& tensor : tensors) {
    HeldSlice slice{tensor.name,
                    dtype_name(tensor.data.scalar_type()),
                    tensor.global_shape,
                    {tensor.offset, tensor.data.sizes().vec()}};
    if (!inside(slice.box, slice.global_shape))
      throw std::logic_error(concat("a slice that lies outside of \"", tensor.name, "\""));
    slices.push_back(std::move(slice));
  }
  return slices;
}

}  // namespace

Saver::Saver(fs::path folder, comm::Group world, Options options)
    : folder_(std::move(folder)), world_(std::move(world)), options_(std::move(options)) {
  if (world_.rank() == 0) coordinator_ = std::make_unique<Coordinator>(folder_, options_.keep, options_.require_folder);
}

Saver::~Saver() {
  given_up_ = true;
  if (work_.valid()) work_.wait();
}

// What ranks hold rarely changes from one save of a run to the next; then they need not talk of it again.
void Saver::agree_on_writes(const std::string& failure, std::vector<HeldSlice> held) {
  const bool changed = !failure.empty() || !agreed_ || held != held_;
  if (world_.all_reduce_scalars({changed ? 1.0 : 0.0}, comm::ReduceOp::Max)[0] == 0) return;
  agreed_ = false;
  const std::string own = !failure.empty() ? failure : attempt([&] {
    if (by_node() && leads_node()) prepare_folder(folder_);
    return to_text(held);
  });
  const auto holdings = messages_->gather(own);
  const std::string answer = messages_->scatter(coordinator_ ? coordinator_->plan(holdings) : holdings);
  require_done(answer);
  writes_ = parse_json(outcome(answer, "")).get<std::vector<std::size_t>>();
  held_ = std::move(held);
  agreed_ = true;
}

void Saver::begin(std::int64_t iteration, std::vector<ShardedTensor> tensors, Metadata metadata) {
  finish();
  std::erase_if(tensors, [](const ShardedTensor& tensor) { return tensor.is_copy; });
  if (!messages_)
    messages_ = std::make_unique<Messages>(world_, tensors.empty() ? at::Device(at::kCPU) : tensors[0].data.device());
  std::vector<HeldSlice> held;
  std::string failure;
  try {
    held = describe(tensors);
    if (coordinator_) coordinator_->require_folder();
  } catch (const std::exception& e) {
    failure = failed_message(message_of(e));
  }
  agree_on_writes(failure, std::move(held));

  if (coordinator_) coordinator_->begin(iteration, std::move(metadata));
  std::vector<at::Tensor> slices;
  for (const std::size_t index : writes_) slices.push_back(tensors[index].data.detach());
  snapshot_.begin(std::move(slices));
  name_ = iteration_name(iteration);
  work_ = std::async(std::launch::async, [this] {
    return attempt([&] {
      const fs::path temporary = temporary_folder(folder_, name_);
      fs::create_directory(temporary);  // whoever comes first
      return taking_memory_for("what a checkpoint is written from",
                               [&] { return write_part(temporary / data_file_name(world_.rank())); });
    });
  });
  phase_ = Phase::Writing;
  if (!options_.asynchronous) finish();
}

// In this rank's thread.
std::string Saver::write_part(const fs::path& path) {
  if (writes_.empty()) return to_text(Written{});
  std::string text;
  const SafetensorsHeader header = make_safetensors(entries_of(held_, writes_), {{"format", "pt"}}, text);
  Written written;
  for (const SafetensorsEntry& entry : header.tensors) written.begins.push_back(entry.begin);

  HashedWriter file(path, header.file_size());
  file.write(std::as_bytes(std::span(text)));
  std::uint64_t left = header.file_size() - text.size();
  while (left > 0) {
    if (given_up_) throw std::runtime_error("the run ended before it was written");
    const std::size_t count = snapshot_.read(file.space());
    file.wrote(count);
    left -= count;
    if (count == 0) throw std::logic_error("a snapshot with fewer bytes than its tensors have");
  }
  written.file = file.finish();
  return to_text(written);
}

void Saver::before_change() {
  if (phase_ == Phase::Writing) snapshot_.freeze();
}

bool Saver::wait_for_own_work(std::chrono::milliseconds time) const {
  return !work_.valid() || work_.wait_for(time) == std::future_status::ready;
}

void Saver::poll() {
  if (phase_ == Phase::Idle) return;
  if (phase_ == Phase::Copying) return copy();
  const bool ready = wait_for_own_work(std::chrono::milliseconds(0));
  if (world_.all_reduce_scalars({ready ? 0.0 : 1.0}, comm::ReduceOp::Max)[0] > 0) return;
  if (phase_ == Phase::Writing) {
    std::vector<std::string> reports = messages_->gather(work_.get());
    snapshot_.end();
    if (by_node()) return hand_out(reports);
    phase_ = Phase::Publishing;
    if (coordinator_)
      work_ = std::async(std::launch::async,
                         [this, reports = std::move(reports)] { return coordinator_->finish(reports); });
    return;
  }
  if (by_node()) return end_on_nodes();
  phase_ = Phase::Idle;
  std::vector<std::string> answers(static_cast<std::size_t>(world_.size()));
  if (coordinator_) std::fill(answers.begin(), answers.end(), work_.get());
  require_done(messages_->scatter(answers));
}

void Saver::finish() {
  while (phase_ != Phase::Idle) {
    wait_for_own_work(options_.beat);
    poll();
  }
  if (work_.valid()) work_.wait();  // for what removes old iterations of a node
}

void Saver::require_done(const std::string& answer) {
  try {
    outcome(answer, "");
  } catch (const std::runtime_error& failure) {
    phase_ = Phase::Idle;
    std::error_code ignored;  // rank 0 has removed what it shares with all
    if (by_node() && leads_node()) fs::remove_all(temporary_folder(folder_, name_), ignored);
    throw SaveError(failure.what());
  }
}

void save(const fs::path& folder, std::int64_t iteration, const std::vector<ShardedTensor>& tensors,
          const Metadata& metadata, const comm::Group& world, int keep_last) {
  Saver(folder, world, {.keep = {.last = keep_last}}).begin(iteration, tensors, metadata);
}

}  // namespace megatron::checkpoint
