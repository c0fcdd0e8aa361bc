#include "megatron/checkpoint/files/node_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/text/json.h"
#include "megatron/checkpoint/files/descriptors.h"
#include "megatron/checkpoint/files/files.h"
#include "megatron/checkpoint/files/folder.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The JSON value of an entry of the metadata; null where there is none.
json entry_of(const Manifest& manifest, const char* name) {
  const auto found = manifest.metadata.find(name);
  return found == manifest.metadata.end() ? json() : try_parse_json(found->second).value_or(nullptr);
}

NodeCheckpoint looked_at(const fs::path& iteration_folder, const Manifest& manifest) {
  const json after = entry_of(manifest, kMemoryAfter);
  NodeCheckpoint found{.iteration = manifest.iteration,
                       .fingerprint = fingerprint(iteration_folder),
                       .after = after.is_number_integer() ? after.get<std::int64_t>() : -1,
                       .held = {},
                       .missing = {}};
  for (const FileRecord& file : manifest.files) {
    bool is_held = true;
    try {
      const CheckedReader reader(iteration_folder, file);
    } catch (const Damage&) {
      is_held = false;
    }
    (is_held ? found.held : found.missing).push_back(file.name);
  }
  return found;
}

/// Closed at the end.
struct OpenFile {
  OpenFile(const fs::path& path, int flags) : descriptor(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    if (descriptor < 0) throw std::runtime_error(write_error(path, "cannot be opened", errno));
  }
  ~OpenFile() { ::close(descriptor); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor;
};

}  // namespace

void publish_on_node(const fs::path& folder, const std::string& name, const std::string& manifest,
                     const std::set<std::string>& files) {
  const fs::path temporary = temporary_folder(folder, name);
  fs::create_directories(temporary);
  write_file(temporary / "manifest.json", manifest);
  for (const FileRecord& file : parse_manifest(manifest, (temporary / "manifest.json").string()).files)
    if (files.contains(file.name)) CheckedReader(temporary, file);
  publish(folder, temporary, name);
}

void keep_only(const fs::path& folder, const std::string& name) {
  for (const std::int64_t iteration : iterations_in(folder))
    if (iteration_name(iteration) != name) remove_checkpoint(folder / iteration_name(iteration));
}

std::vector<NodeCheckpoint> checkpoints_of_node(const fs::path& folder, const std::string& owner,
                                                std::vector<std::string>& problems) {
  std::vector<NodeCheckpoint> found;
  for (const std::int64_t iteration : iterations_in(folder)) {
    const fs::path path = folder / iteration_name(iteration);
    try {
      const Manifest manifest = read_manifest(path);
      check_whole(path, manifest);
      if (entry_of(manifest, kMemoryOf) == owner) found.push_back(looked_at(path, manifest));
    } catch (const std::exception& problem) {
      problems.emplace_back(problem.what());
    }
  }
  return found;
}

std::string to_text(const std::vector<NodeCheckpoint>& checkpoints) {
  json list = json::array();
  for (const NodeCheckpoint& of : checkpoints)
    list.push_back({of.iteration, of.fingerprint, of.after, of.held, of.missing});
  return list.dump();
}

std::vector<NodeCheckpoint> node_checkpoints(const std::string& text) {
  std::vector<NodeCheckpoint> checkpoints;
  for (const json& of : parse_json(text))
    checkpoints.push_back({.iteration = of[0], .fingerprint = of[1], .after = of[2], .held = of[3], .missing = of[4]});
  return checkpoints;
}

std::vector<SharedCheckpoint> shared_checkpoints(const std::vector<std::vector<NodeCheckpoint>>& by_node) {
  struct Shared {
    SharedCheckpoint checkpoint;
    std::set<std::string> held, missing;
  };
  std::map<std::pair<std::int64_t, std::string>, Shared> all;
  for (std::size_t node = 0; node < by_node.size(); ++node) {
    for (const NodeCheckpoint& of : by_node[node]) {
      Shared& shared = all[{of.iteration, of.fingerprint}];
      shared.checkpoint.iteration = of.iteration;
      shared.checkpoint.after = of.after;
      shared.checkpoint.fingerprint = of.fingerprint;
      shared.checkpoint.nodes.push_back(node);
      shared.held.insert(of.held.begin(), of.held.end());
      shared.missing.insert(of.missing.begin(), of.missing.end());
    }
  }
  std::vector<SharedCheckpoint> whole;
  for (const auto& [name, shared] : all)
    if (std::ranges::includes(shared.held, shared.missing)) whole.push_back(shared.checkpoint);
  std::ranges::reverse(whole);
  return whole;
}

std::vector<std::vector<std::size_t>> holders_of(const SharedCheckpoint& checkpoint, const Manifest& manifest,
                                                 const std::vector<std::vector<NodeCheckpoint>>& by_node) {
  std::map<std::string, std::vector<std::size_t>> holders;
  for (const std::size_t node : checkpoint.nodes)
    for (const NodeCheckpoint& of : by_node.at(node))
      if (of.iteration == checkpoint.iteration && of.fingerprint == checkpoint.fingerprint)
        for (const std::string& file : of.held) holders[file].push_back(node);
  std::vector<std::vector<std::size_t>> by_file;
  for (const FileRecord& file : manifest.files) by_file.push_back(holders[file.name]);
  return by_file;
}

void make_empty_file(const fs::path& path, std::uint64_t size) {
  const OpenFile file(path, O_WRONLY | O_CREAT | O_EXCL);
  if (::ftruncate(file.descriptor, static_cast<off_t>(size)) != 0)
    throw std::runtime_error(write_error(path, "cannot be written", errno));
}

void write_bytes(const fs::path& path, std::uint64_t offset, std::span<const std::byte> bytes) {
  const OpenFile file(path, O_WRONLY | O_CREAT);
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file.descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::runtime_error(write_error(path, "cannot be written", errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void read_bytes(const fs::path& path, std::uint64_t offset, std::span<std::byte> bytes) {
  const OpenFile file(path, O_RDONLY);
  if (read_at(file.descriptor, offset, bytes, path) != bytes.size())
    throw std::runtime_error(concat(path.string(), ": ends before byte ", offset + bytes.size()));
}

}  // namespace megatron::checkpoint
