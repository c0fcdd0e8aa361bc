#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/plan/ranks/node_copies.h"

namespace megatron::checkpoint {

/// Gives each rank's file of a checkpoint to a rank of the next node (plan::neighbour_copies), which writes it beside
/// its own: in rounds of a few MiB, so that training goes its way between them. A rank that cannot read or write takes
/// part in the rounds nonetheless, and says so at the end.
class PartCopies {
 public:
  /// `device`: on which the group's transport takes tensors.
  PartCopies(comm::Group world, at::Device device) : world_(std::move(world)), device_(device) {}

  /// `folder`: where this rank's file is, and those that it keeps will be. `bytes`: of each rank's file. The same on
  /// every rank but for `folder`.
  void begin(const std::filesystem::path& folder, const plan::Nodes& nodes, const std::vector<std::uint64_t>& bytes);
  std::uint64_t rounds() const { return rounds_; }
  std::uint64_t rounds_left() const { return rounds_ - round_; }
  /// One round. Collective over the world.
  void advance();
  /// What came of it on this rank, as a message (coordinator.h).
  std::string outcome() const;

 private:
  struct PeerFile {
    int peer = 0;
    std::filesystem::path path;
    std::uint64_t size = 0;
    at::Tensor chunk = {};
    comm::WorkHandle work = {};
  };
  std::uint64_t chunk_of(const PeerFile& file) const;
  void attempt_io(const std::function<void()>& work);

  comm::Group world_;
  at::Device device_;
  std::vector<PeerFile> sent_, kept_;
  std::uint64_t rounds_ = 0, round_ = 0;
  bool sends_first_ = false;
  std::string failure_;
};

}  // namespace megatron::checkpoint
