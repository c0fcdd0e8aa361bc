#include <c10/core/GradMode.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/dtypes.h"
#include "megatron/checkpoint/files.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/messages.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/checkpoint/save_plan.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

/// A message between ranks: what came of a piece of work, or why it failed.
template <class Work>
std::string attempt(Work work) {
  try {
    return json({{"done", work()}}).dump();
  } catch (const std::exception& e) {
    return json({{"failed", e.what()}}).dump(-1, ' ', false, json::error_handler_t::replace);
  }
}

/// What the work of a message came to. Throws std::runtime_error where it failed.
std::string outcome(const std::string& message, const std::string& who) {
  const json value = json::parse(message);
  if (value.contains("failed"))
    throw std::runtime_error(concat("checkpoint not saved: ", who, ": ", value["failed"].get<std::string>()));
  return value["done"];
}

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

/// The name of a slice in its safetensors file: the tensor's, where the slice is all of it.
std::string stored_name(const HeldSlice& slice) {
  if (slice.box.shape == slice.global_shape) return slice.name;
  std::string name = slice.name + "@";
  for (std::size_t d = 0; d < slice.box.offset.size(); ++d) name += concat(d == 0 ? "" : ",", slice.box.offset[d]);
  return name;
}

Written write_file_of_rank(const fs::path& path, const std::vector<HeldSlice>& held,
                           const std::vector<std::size_t>& writes, const std::vector<ShardedTensor>& tensors) {
  if (writes.empty()) return {};
  std::vector<SafetensorsEntry> entries;
  for (const std::size_t index : writes)
    entries.push_back({.name = stored_name(held[index]), .dtype = held[index].dtype, .shape = held[index].box.shape});
  std::string text;
  const SafetensorsHeader header = make_safetensors(std::move(entries), {{"format", "pt"}}, text);

  const c10::NoGradGuard no_grad;
  HashedWriter file(path);
  file.write(std::as_bytes(std::span(text)));
  Written written;
  for (std::size_t k = 0; k < writes.size(); ++k) {
    const at::Tensor data = tensors[writes[k]].data.cpu().contiguous();
    file.write({static_cast<const std::byte*>(data.data_ptr()), static_cast<std::size_t>(data.nbytes())});
    written.begins.push_back(header.tensors[k].begin);
  }
  written.file = file.finish();
  return written;
}

std::string file_name(int rank) {
  const std::string digits = std::to_string(rank);
  return "rank_" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".safetensors";
}

/// Rank 0's part of a save; the other ranks answer it.
class Coordinator {
 public:
  Coordinator(const fs::path& folder, std::int64_t iteration, const Metadata& metadata)
      : folder_(folder), name_(iteration_name(iteration)), iteration_(iteration), metadata_(metadata) {}

  /// From what every rank holds: what each is to write.
  std::vector<std::string> plan(const std::vector<std::string>& reports) {
    const std::string failure = attempt([&] {
      for (std::size_t rank = 0; rank < reports.size(); ++rank)
        held_.push_back(held_slices(outcome(reports[rank], concat("rank ", rank))));
      writes_ = plan_writes(held_);
      temporary_ = begin_writing(folder_, name_);
      return "";
    });
    std::vector<std::string> answers(reports.size(), failure);
    for (std::size_t rank = 0; rank < writes_.size() && !temporary_.empty(); ++rank)
      answers[rank] = attempt([&] { return json(writes_[rank]).dump(); });
    return answers;
  }

  /// From what every rank has written: publishes it, or removes it.
  std::vector<std::string> finish(const std::vector<std::string>& reports, int keep_last) {
    const std::string answer = attempt([&] {
      std::vector<Written> written;
      for (std::size_t rank = 0; rank < reports.size(); ++rank)
        written.push_back(written_slices(outcome(reports[rank], concat("rank ", rank))));
      Manifest manifest = join_manifest(held_, writes_, written);
      manifest.iteration = iteration_;
      manifest.metadata = metadata_;
      const std::string text = manifest_text(manifest);
      parse_manifest(text, (temporary_ / "manifest.json").string());  // what could not be read must not be published
      write_file(temporary_ / "manifest.json", text);
      publish(folder_, temporary_, name_);
      remove_old_ones(keep_last);
      return "";
    });
    std::error_code
        ignored;  // after a failure nothing more can be done about the leftovers; after a success there are none
    fs::remove_all(temporary_, ignored);
    return std::vector<std::string>(reports.size(), answer);
  }

 private:
  /// The new checkpoint stands: one that cannot be removed is no reason to end the run.
  void remove_old_ones(int keep_last) const {
    try {
      remove_old(folder_, keep_last);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "warning: an old checkpoint in %s is not removed: %s\n", folder_.c_str(), e.what());
    }
  }

  fs::path folder_, temporary_;
  std::string name_;
  std::int64_t iteration_;
  Metadata metadata_;
  std::vector<std::vector<HeldSlice>> held_;
  std::vector<std::vector<std::size_t>> writes_;
};

}  // namespace

void save(const fs::path& folder, std::int64_t iteration, const std::vector<ShardedTensor>& tensors,
          const Metadata& metadata, const comm::Group& world, int keep_last) {
  const Messages messages(world, tensors.empty() ? at::Device(at::kCPU) : tensors.front().data.device());
  const bool is_first = world.rank() == 0;
  Coordinator coordinator(folder, iteration, metadata);
  std::vector<HeldSlice> held;

  const std::vector<std::string> holdings = messages.gather(attempt([&] {
    held = describe(tensors);
    return to_text(held);
  }));
  const std::string answer = messages.scatter(is_first ? coordinator.plan(holdings) : holdings);
  const std::vector<std::size_t> writes = json::parse(outcome(answer, "rank 0"));

  const std::vector<std::string> reports = messages.gather(attempt([&] {
    const fs::path path = folder / (".tmp-" + iteration_name(iteration)) / file_name(world.rank());
    return to_text(write_file_of_rank(path, held, writes, tensors));
  }));
  outcome(messages.scatter(is_first ? coordinator.finish(reports, keep_last) : reports), "rank 0");
}

}  // namespace megatron::checkpoint
