#include "megatron/train/resume/memory_copies.h"

#include <ATen/ops/empty.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/slices/read_plan.h"
#include "megatron/comm/agreement.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/supervise/memory_folder.h"
#include "megatron/supervise/run_files.h"
#include "megatron/train/inputs.h"
#include "megatron/train/iteration.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;
namespace sv = supervise;

constexpr const char* kOpened = ".opened";  // in the node's folder: what open() makes
constexpr std::uint64_t kBlocksAtOnce = 8;

/// A digest of the options that say what a checkpoint's weights mean and which samples come next. Layouts and learning
/// rates are not among them: a run may resume with others.
std::string recipe_digest(config::RunConfig config) {
  std::string text;
  for (const config::Field& field : config::fields_of(config).fields) {
    const config::Affects affects = field.meaning.affects;
    if (affects == config::Affects::Weights || affects == config::Affects::Samples || field.path == "train.seed")
      text += concat(field.path, "=", config::plain_value(field.value), "\n");
  }
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

/// With the run's time: checkpoint::kMemoryOf.
std::string owner_of(const std::string& run, const std::string& recipe) { return concat(run, "-", recipe, "-"); }

/// What nodes have between them of a time when the run's newest checkpoint on the disk was no newer than it is now.
std::vector<checkpoint::SharedCheckpoint> whole_of(const std::vector<std::vector<checkpoint::NodeCheckpoint>>& by_node,
                                                   std::int64_t newest_on_disk) {
  std::vector<checkpoint::SharedCheckpoint> whole = checkpoint::shared_checkpoints(by_node);
  std::erase_if(whole, [&](const checkpoint::SharedCheckpoint& of) { return of.after > newest_on_disk; });
  return whole;
}

bool is_among(const std::vector<std::size_t>& nodes, std::size_t node) {
  return std::ranges::find(nodes, node) != nodes.end();
}

/// Sorted, and none twice.
std::vector<plan::FileBlocks> merged(std::vector<plan::FileBlocks> blocks) {
  std::ranges::sort(blocks, {}, [](const plan::FileBlocks& of) { return std::pair(of.file, of.first); });
  std::vector<plan::FileBlocks> result;
  for (const plan::FileBlocks& of : blocks) {
    if (!result.empty() && result.back().file == of.file && of.first <= result.back().end)
      result.back().end = std::max(result.back().end, of.end);
    else
      result.push_back(of);
  }
  return result;
}

std::string to_text(const std::vector<plan::FileBlocks>& blocks) {
  nlohmann::json list = nlohmann::json::array();
  for (const plan::FileBlocks& of : blocks) list.push_back({of.file, of.first, of.end});
  return list.dump();
}

std::vector<plan::FileBlocks> blocks_of(const std::string& text) {
  std::vector<plan::FileBlocks> blocks;
  for (const nlohmann::json& of : parse_json(text)) blocks.push_back({.file = of[0], .first = of[1], .end = of[2]});
  return blocks;
}

std::uint64_t bytes_of(const checkpoint::Manifest& manifest, const plan::FileBlocks& blocks) {
  const std::uint64_t size = manifest.files.at(blocks.file).size;
  return std::min(size, blocks.end * checkpoint::kBlockBytes) - std::min(size, blocks.first * checkpoint::kBlockBytes);
}

std::span<std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

}  // namespace

bool memory_is_left(const config::RunConfig& config, const comm::Group& world) {
  const bool left = sv::newest_in_memory(config.checkpoint.memory_folder, save_folder(config)).has_value();
  return world.all_reduce_scalars({left ? 1.0 : 0.0}, comm::ReduceOp::Max)[0] > 0;
}

void leave_memory_behind(const config::RunConfig& config, const comm::Group& world) {
  const auto leave = [&] {
    if (world.rank() == 0 && sv::memory_run(save_folder(config))) sv::begin_memory_time(save_folder(config));
  };
  comm::run_together(world, leave, beat_of(config));
}

std::vector<fs::path> whole_in_memory(const config::RunConfig& config) {
  std::vector<fs::path> whole;
  const fs::path save = save_folder(config);
  const auto run = sv::memory_run(save);
  if (!run) return whole;
  const std::string recipe = recipe_digest(config);
  const fs::path folder = sv::memory_folder(fs::absolute(config.checkpoint.memory_folder), run->run, recipe);
  std::vector<std::string> problems;  // said when ranks look
  const auto kept = checkpoint::checkpoints_of_node(folder, owner_of(run->run, recipe) + run->time, problems);
  for (const checkpoint::SharedCheckpoint& of : whole_of({kept}, sv::newest_checkpoint(save).value_or(-1)))
    whole.push_back(folder / checkpoint::iteration_name(of.iteration));
  return whole;
}

MemoryCopies::MemoryCopies(const plan::ResolvedRun& run, const Engine& engine)
    : run_(run), engine_(engine), beat_(beat_of(run.config)) {
  const config::CheckpointConfig& checkpoint = run.config.checkpoint;
  const comm::Group& world = engine.context.world();
  std::string drawn;
  together([&] {
    if (rank() != 0) return;
    const sv::MemoryRun found = sv::make_memory_run(save_folder(run.config));
    drawn = concat(found.run, " ", found.time, " ", sv::random_digits());
  });
  std::istringstream words(comm::gather_texts(world, drawn)[0]);
  std::string of_run, time, nonce;
  words >> of_run >> time >> nonce;
  const std::string recipe = recipe_digest(run.config);
  owner_ = owner_of(of_run, recipe);
  time_ = time;
  folder_ = sv::memory_folder(fs::absolute(checkpoint.memory_folder), of_run, recipe);
  find_nodes(nonce);
  look();
  saver_.emplace(folder_, world,
                 checkpoint::Saver::Options{.asynchronous = checkpoint.async_save,
                                            .beat = beat_,
                                            .nodes = nodes_,
                                            .neighbours = checkpoint.memory_neighbours,
                                            .copy_polls = std::max<std::int64_t>(checkpoint.memory_interval, 1)});
}

/// Throws the same on every rank where `work` throws on one.
void MemoryCopies::together(const std::function<void()>& work) const {
  comm::run_together(engine_.context.world(), work, beat_);
}

void MemoryCopies::on_node(const std::function<void()>& work) const {
  together([&] {
    if (leads()) work();
  });
}

/// Ranks that see one folder are a node, whatever hosts are called: each leaves a mark there, and looks for those of
/// others.
void MemoryCopies::find_nodes(const std::string& nonce) {
  const auto mark = [&](int of) { return folder_ / concat(".rank-", nonce, "-", of); };
  together([&] {
    sv::make_memory_folder(folder_);
    write_file(mark(rank()), "");
  });
  int lowest = 0;
  together([&] {
    while (lowest < rank() && !fs::exists(mark(lowest))) ++lowest;
  });
  std::vector<int> by_rank;
  for (const std::string& text : comm::gather_texts(engine_.context.world(), std::to_string(lowest)))
    by_rank.push_back(std::stoi(text));
  nodes_ = plan::nodes_of(by_rank);
  std::error_code ignored;
  fs::remove(mark(rank()), ignored);
}

std::int64_t MemoryCopies::newest_on_disk() const {
  return sv::newest_checkpoint(save_folder(run_.config)).value_or(-1);
}

void MemoryCopies::look() {
  std::string own;
  on_node([&] {
    fs::remove_all(folder_ / kOpened);
    std::vector<std::string> problems;
    own = checkpoint::to_text(checkpoint::checkpoints_of_node(folder_, owner_ + time_, problems));
    for (const std::string& problem : problems)
      write_line(stderr, concat("WARNING: a checkpoint in memory is left out: ", problem));
  });
  const std::vector<std::string> texts = comm::gather_texts(engine_.context.world(), own);
  for (const std::vector<int>& ranks : nodes_)
    kept_.push_back(checkpoint::node_checkpoints(texts[static_cast<std::size_t>(ranks.front())]));
  std::string on_disk;
  if (rank() == 0) on_disk = std::to_string(newest_on_disk());
  whole_ = whole_of(kept_, std::stoll(comm::gather_texts(engine_.context.world(), on_disk)[0]));
}

bool MemoryCopies::is_due(std::int64_t iteration) const {
  return works_ && run_.config.checkpoint.memory_interval > 0 &&
         iteration % run_.config.checkpoint.memory_interval == 0;
}

void MemoryCopies::before_change() { saver_->before_change(); }

void MemoryCopies::guarded(const std::function<void()>& work) {
  try {
    work();
  } catch (const checkpoint::SaveError& error) {
    works_ = false;
    if (rank() == 0)
      write_line(stderr, concat("WARNING: no more checkpoints are kept in memory (checkpoint.memory_interval): ",
                                error.what()));
  }
}

void MemoryCopies::save(const RunState& state, const std::string& recipe, const std::string& inputs) {
  guarded([&] {
    checkpoint::Metadata metadata = run_metadata(state, engine_, recipe, inputs);
    metadata[checkpoint::kMemoryOf] = nlohmann::json(owner_ + time_).dump();
    if (rank() == 0) metadata[checkpoint::kMemoryAfter] = std::to_string(newest_on_disk());
    saver_->begin(state.iteration, sharded_tensors(engine_), std::move(metadata));
  });
}

void MemoryCopies::poll() {
  guarded([&] { saver_->poll(); });
}

void MemoryCopies::clear() {
  guarded([&] { saver_->finish(); });
  whole_.clear();
  on_node([&] {
    fs::remove(folder_ / "latest");
    checkpoint::keep_only(folder_, "");
  });
  std::string time;
  together([&] {
    if (rank() == 0) time = sv::begin_memory_time(save_folder(run_.config));
  });
  time_ = comm::gather_texts(engine_.context.world(), time)[0];
}

void MemoryCopies::remove_others() {
  on_node([&] { sv::remove_other_recipes(folder_); });
}

void MemoryCopies::remove() {
  guarded([&] { saver_->finish(); });
  works_ = false;
  engine_.context.world().barrier();
  std::error_code ignored;
  if (leads()) fs::remove_all(folder_, ignored);
}

std::vector<std::int64_t> MemoryCopies::iterations() const {
  std::vector<std::int64_t> iterations;
  for (const checkpoint::SharedCheckpoint& of : whole_) iterations.push_back(of.iteration);
  return iterations;
}

fs::path MemoryCopies::place(std::int64_t iteration) const { return folder_ / checkpoint::iteration_name(iteration); }

/// The text that rank `giver` has, on every rank.
std::string MemoryCopies::from(int giver, const std::string& text) const {
  const comm::Group& world = engine_.context.world();
  const auto own = static_cast<double>(rank() == giver ? text.size() : 0);
  const auto size = static_cast<std::int64_t>(world.all_reduce_scalars({own}, comm::ReduceOp::Max)[0]);
  const at::Tensor bytes = at::empty({size}, at::kByte);
  if (rank() == giver) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  const at::Tensor sent = bytes.to(engine_.context.device());
  world.broadcast(sent, giver);
  std::string result(static_cast<std::size_t>(size), '\0');
  std::memcpy(result.data(), sent.cpu().data_ptr(), result.size());
  return result;
}

fs::path MemoryCopies::open(std::int64_t iteration) {
  const auto found = std::ranges::find(whole_, iteration, &checkpoint::SharedCheckpoint::iteration);
  const fs::path own = place(iteration), opened = folder_ / kOpened;
  fetched_bytes_ = 0;
  if (nodes_.size() == 1) return own;
  const int giver = nodes_.at(found->nodes.front()).front();
  std::string text;
  together([&] {
    if (rank() == giver) text = read_file(own / "manifest.json", checkpoint::kMaxManifestBytes);
  });
  text = from(giver, text);
  const checkpoint::Manifest manifest = checkpoint::parse_manifest(text, (own / "manifest.json").string());
  const auto holders = checkpoint::holders_of(*found, manifest, kept_);
  on_node([&] {
    fs::remove_all(opened);
    fs::create_directory(opened);
    write_file(opened / "manifest.json", text);
    for (std::size_t k = 0; k < manifest.files.size(); ++k) {
      const checkpoint::FileRecord& file = manifest.files[k];
      if (is_among(holders[k], node()))
        fs::create_hard_link(own / file.name, opened / file.name);
      else
        checkpoint::make_empty_file(opened / file.name, file.size);
    }
  });
  const std::vector<plan::BlockTransfer> planned = transfers(manifest, holders);
  for (const plan::BlockTransfer& transfer : planned) fetched_bytes_ += bytes_of(manifest, transfer.blocks);
  const std::string failure = fetch(manifest, planned, own, opened);
  together([&] {
    if (!failure.empty()) throw std::runtime_error(failure);
  });
  return opened;
}

/// What load_run() will read and this node does not have: asked for by every rank, planned by each alike.
std::vector<plan::BlockTransfer> MemoryCopies::transfers(const checkpoint::Manifest& manifest,
                                                         const std::vector<std::vector<std::size_t>>& holders) const {
  std::vector<checkpoint::WantedSlice> wanted;
  for (const checkpoint::ShardedTensor& tensor : tensors_to_load(engine_, /*with_state=*/true)) {
    const auto record = manifest.tensors.find(tensor.name);
    if (record == manifest.tensors.end() || record->second.shape != tensor.global_shape) continue;  // said when loaded
    wanted.push_back({&record->second, {tensor.offset, tensor.data.sizes().vec()}});
  }
  for (const std::string& name : tensors_read_whole(engine_)) {
    const auto record = manifest.tensors.find(name);
    if (record == manifest.tensors.end()) continue;
    const std::vector<std::int64_t>& shape = record->second.shape;
    wanted.push_back({&record->second, {std::vector<std::int64_t>(shape.size(), 0), shape}});
  }
  std::vector<plan::FileBlocks> missing;
  for (const checkpoint::BlockRange& range : checkpoint::plan_reads(manifest, wanted).blocks)
    if (!is_among(holders[range.file], node())) missing.push_back({range.file, range.first, range.end});
  std::vector<std::vector<plan::FileBlocks>> by_rank;
  for (const std::string& text : comm::gather_texts(engine_.context.world(), to_text(merged(std::move(missing)))))
    by_rank.push_back(blocks_of(text));
  return plan::plan_transfers(nodes_, holders, by_rank, kBlocksAtOnce);
}

/// Sends and receives what `transfers` say; a rank that cannot read or write goes through all nonetheless. What went
/// wrong here.
std::string MemoryCopies::fetch(const checkpoint::Manifest& manifest, const std::vector<plan::BlockTransfer>& transfers,
                                const fs::path& own, const fs::path& opened) const {
  const comm::Group& world = engine_.context.world();
  const at::Device device = engine_.context.device();
  std::string failure;
  const auto attempt_io = [&](const auto& work) {
    try {
      if (failure.empty()) work();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  for (const plan::BlockTransfer& transfer : transfers) {
    if (transfer.from != rank() && transfer.to != rank()) continue;
    const std::string& name = manifest.files[transfer.blocks.file].name;
    const std::uint64_t begin = transfer.blocks.first * checkpoint::kBlockBytes;
    const at::Tensor bytes = at::empty({static_cast<std::int64_t>(bytes_of(manifest, transfer.blocks))}, at::kByte);
    if (transfer.from == rank()) {
      attempt_io([&] { checkpoint::read_bytes(own / name, begin, bytes_in(bytes)); });
      world.send(bytes.to(device), transfer.to);
    } else {
      const at::Tensor received = bytes.to(device);
      world.recv(received, transfer.from);
      attempt_io([&] { checkpoint::write_bytes(opened / name, begin, bytes_in(received.cpu())); });
    }
  }
  return failure;
}

void MemoryCopies::close() {
  std::error_code ignored;
  if (nodes_.size() > 1 && leads()) fs::remove_all(folder_ / kOpened, ignored);
}

}  // namespace megatron::train
