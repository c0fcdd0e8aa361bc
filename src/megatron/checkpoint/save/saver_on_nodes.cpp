// What a Saver does where each node has a folder of its own.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/checkpoint/files/node_folder.h"
#include "megatron/checkpoint/save/coordinator.h"
#include "megatron/checkpoint/save/part_copies.h"
#include "megatron/checkpoint/save/saver.h"

namespace megatron::checkpoint {
namespace {

/// The files of a checkpoint that node number `node` has.
std::set<std::string> files_of(const Saver::Options& options, std::size_t node,
                               const std::vector<std::uint64_t>& bytes) {
  std::set<std::string> files;
  for (const int rank : options.nodes[node])
    if (bytes[static_cast<std::size_t>(rank)] > 0) files.insert(data_file_name(rank));
  if (options.neighbours)
    for (const plan::FileCopy& copy : plan::neighbour_copies(options.nodes, bytes))
      if (plan::node_of(options.nodes, copy.to) == node) files.insert(data_file_name(copy.from));
  return files;
}

}  // namespace

bool Saver::leads_node() const {
  return options_.nodes[plan::node_of(options_.nodes, world_.rank())].front() == world_.rank();
}

/// Every rank has written its file. Rank 0 tells all how large the files are, and the first rank of each node what the
/// manifest says.
void Saver::hand_out(const std::vector<std::string>& reports) {
  std::vector<std::string> answers;
  if (coordinator_) {
    std::string manifest;
    nlohmann::json sizes = nlohmann::json::array();
    const std::string failure = attempt([&] {
      manifest = coordinator_->manifest(reports);
      for (const std::string& report : reports) sizes.push_back(written_slices(outcome(report, "")).file.size);
      return "";
    });
    answers.assign(reports.size(), failure);
    if (!manifest.empty()) {
      std::ranges::fill(answers, done_message(nlohmann::json({sizes, ""}).dump()));
      for (const std::vector<int>& node : options_.nodes)
        answers[static_cast<std::size_t>(node.front())] = done_message(nlohmann::json({sizes, manifest}).dump());
    }
  }
  const std::string answer = messages_->scatter(answers);
  require_done(answer);
  const nlohmann::json value = parse_json(outcome(answer, ""));
  file_bytes_ = value[0].get<std::vector<std::uint64_t>>();
  manifest_ = value[1].get<std::string>();
  if (!options_.neighbours || options_.nodes.size() < 2) return publish_on_nodes();
  if (!copies_) copies_ = std::make_unique<PartCopies>(world_, messages_->device());
  copies_->begin(temporary_folder(folder_, name_), options_.nodes, file_bytes_);
  phase_ = Phase::Copying;
  copy();
}

void Saver::copy() {
  const auto polls = static_cast<std::uint64_t>(options_.copy_polls);
  std::uint64_t rounds =
      std::max(static_cast<std::uint64_t>(options_.copy_rounds), (copies_->rounds() + polls - 1) / polls);
  for (; rounds > 0 && copies_->rounds_left() > 0; --rounds) copies_->advance();
  if (copies_->rounds_left() > 0) return;
  require_all_done(copies_->outcome());
  publish_on_nodes();
}

void Saver::publish_on_nodes() {
  phase_ = Phase::Publishing;
  const bool leads = leads_node();
  work_ = std::async(std::launch::async, [this, leads] {
    return attempt([&] {
      const std::size_t node = plan::node_of(options_.nodes, world_.rank());
      if (leads) publish_on_node(folder_, name_, manifest_, files_of(options_, node, file_bytes_));
      return "";
    });
  });
}

/// Every node has published the new iteration, or could not: those before it go once all have.
void Saver::end_on_nodes() {
  require_all_done(work_.get());
  phase_ = Phase::Idle;
  if (!leads_node()) return;
  work_ = std::async(std::launch::async, [this] {
    return attempt([&] {
      keep_only(folder_, name_);
      return "";
    });
  });
}

/// Throws SaveError on every rank where `own`, a message, says of one that it has failed.
void Saver::require_all_done(const std::string& own) {
  std::vector<std::string> all = messages_->gather(own);
  if (coordinator_) {
    const std::string answer = attempt([&] {
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        outcome(all[rank], concat("checkpoint not saved: rank ", rank));
      return "";
    });
    std::ranges::fill(all, answer);
  }
  require_done(messages_->scatter(all));
}

}  // namespace megatron::checkpoint
