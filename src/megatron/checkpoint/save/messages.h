#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::checkpoint {

/// Texts of any length between rank 0 and the others. Both calls are collective over `world`.
class Messages {
 public:
  /// @param device on which the group's transport takes tensors
  Messages(comm::Group world, at::Device device) : world_(std::move(world)), device_(device) {}

  at::Device device() const { return device_; }

  /// To rank 0: every rank's text, by rank. Elsewhere: empty.
  std::vector<std::string> gather(const std::string& text) const;
  /// From rank 0, which gives one text a rank: this rank's.
  std::string scatter(const std::vector<std::string>& texts) const;

 private:
  void send(const std::string& text, int destination) const;
  std::string recv(int source) const;

  comm::Group world_;
  at::Device device_;
};

}  // namespace megatron::checkpoint
