#include "megatron/checkpoint/save/coordinator.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/manifest.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

std::string done_message(const std::string& value) { return json({{"done", value}}).dump(); }

std::string failed_message(const std::string& reason) {
  return json({{"failed", reason}}).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string outcome(const std::string& message, const std::string& who) {
  const json value = parse_json(message);
  if (value.contains("failed"))
    throw std::runtime_error(concat(who, who.empty() ? "" : ": ", value["failed"].get<std::string>()));
  return value["done"];
}

std::vector<std::string> Coordinator::plan(const std::vector<std::string>& reports) {
  held_.clear();
  writes_.clear();
  const std::string failure = attempt([&] {
    for (std::size_t rank = 0; rank < reports.size(); ++rank)
      held_.push_back(held_slices(outcome(reports[rank], concat("checkpoint not saved: rank ", rank))));
    writes_ = plan_writes(held_);
    prepare_folder(folder_);
    return "";
  });
  std::vector<std::string> answers(reports.size(), failure);
  if (parse_json(failure).contains("failed")) return answers;
  for (std::size_t rank = 0; rank < writes_.size(); ++rank) answers[rank] = done_message(json(writes_[rank]).dump());
  return answers;
}

void Coordinator::begin(std::int64_t iteration, std::map<std::string, std::string> metadata) {
  iteration_ = iteration;
  metadata_ = std::move(metadata);
}

namespace {

/// Rank 0 sees every file, of its size: a rank that wrote elsewhere has not saved its part.
void check_written(const fs::path& temporary) {
  try {
    check_structure(temporary);
  } catch (const Damage& damage) {
    throw std::runtime_error(
        concat("checkpoint not saved: rank 0 does not find what another rank wrote; all ranks must "
               "see one file system: ",
               damage.what()));
  }
}

}  // namespace

std::string Coordinator::manifest(const std::vector<std::string>& reports) const {
  std::vector<Written> written;
  for (std::size_t rank = 0; rank < reports.size(); ++rank)
    written.push_back(written_slices(outcome(reports[rank], concat("checkpoint not saved: rank ", rank))));
  Manifest manifest = join_manifest(held_, writes_, written);
  manifest.iteration = iteration_;
  manifest.metadata = metadata_;
  std::string text = manifest_text(manifest);
  parse_manifest(text, "the new manifest.json");  // what could not be read must not be published
  return text;
}

std::string Coordinator::finish(const std::vector<std::string>& reports) const {
  const std::string name = iteration_name(iteration_);
  const fs::path temporary = temporary_folder(folder_, name);
  bool is_ours = false;
  std::string answer = attempt([&] {
    try {
      require_folder();
    } catch (const std::exception& error) {
      throw std::runtime_error(concat("checkpoint not saved: ", message_of(error)));
    }
    is_ours = true;
    write_file(temporary / "manifest.json", manifest(reports));
    check_written(temporary);
    publish(folder_, temporary, name);
    remove_superfluous();
    return "";
  });
  std::error_code ignored;  // after a failure nothing more can be done about leftovers; after a success there are none
  if (is_ours) fs::remove_all(temporary, ignored);
  return answer;
}

/// The new checkpoint stands: one that cannot be removed is no reason to end the run.
void Coordinator::remove_superfluous() const {
  try {
    for (const fs::path& old : superfluous(folder_, keep_)) {
      require_folder();
      remove_checkpoint(old);
    }
  } catch (const std::exception& e) {
    write_line(stderr, concat("warning: an old checkpoint in ", folder_.string(), " is not removed: ", message_of(e)));
  }
}

}  // namespace megatron::checkpoint
