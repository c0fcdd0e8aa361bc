#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/schedule/placement.h"

namespace megatron::pipeline {

/// A message under way: the memory that it is read from or written to, kept alive, and the transfer.
struct Message {
  at::Tensor tensor;
  comm::WorkHandle work;
};

/// Moves activations and gradients between the pipeline ranks. Any combination of sends and receives in each direction
/// (Megatron-LM's recv_forward … send_forward_backward_recv_forward_backward) is an order of its four calls: posts
/// return at once, so posts that follow one another travel together.
///
/// Messages carry no tag: what one rank sends to another arrives in the order sent, which programs see to
/// (schedule/passes.h). Each direction between two ranks has a communicator of its own (NCCL runs what shares one in
/// the order of its posts on both sides).
class Link {
 public:
  struct Options {
    /// Of what goes from stage to stage on this rank: [s, b, h], or [s/t, b, h] with sequence parallelism.
    std::vector<std::int64_t> shape;
    /// By stage: of what it sends to the next, where they are not all alike (a T5's). Empty: `shape`.
    std::vector<std::vector<std::int64_t>> shape_of_stage = {};
    at::TensorOptions tensor;  ///< its dtype and device
    /// Shapes differ by microbatch: the rank of the first stage tells the others, in one message a program.
    bool shapes_vary = false;
    /// Every tensor-parallel rank has the same tensor: each sends its 1/t, and the receivers gather it (Narayanan et
    /// al. 2021, section 4.1). The number of elements must divide by t.
    bool scatter_gather = false;
  };

  /// A pipeline of one rank.
  Link() = default;
  /// Collective over `pp`: connects the neighbours. `tp`: the tensor-parallel group of this rank.
  Link(const schedule::Placement& placement, const comm::Group& pp, comm::Group tp, Options options);

  bool shapes_vary() const { return options_.shapes_vary; }
  /// Where shapes vary, before each program: shapes[microbatch], asked for on the rank `root` alone. Collective over
  /// pp.
  void exchange_shapes(const std::vector<std::vector<std::int64_t>>& shapes, int num_microbatches, int root);

  /// `to`, `from`: pipeline ranks. A send may last until its receive is posted. `stage`: the one that what is received
  /// belongs to as its output, or the gradient of that.
  Message post_send(const at::Tensor& tensor, int to) const;
  Message post_recv(int microbatch, int from, int stage = 0) const;
  /// The message has left; its memory is released.
  static void wait_sent(Message& message);
  /// The message has come: the whole tensor. With scatter_gather collective over tp.
  at::Tensor wait_received(Message& message, int microbatch, int stage = 0) const;

  /// This rank gives up: what is under way ends, peers that wait learn of it.
  void abort(const std::string& reason) const;

 private:
  std::int64_t share_of(std::int64_t elements) const;  ///< of one tensor-parallel rank
  bool splits() const { return options_.scatter_gather && tp_.size() > 1; }
  const comm::Group& group_to(int from, int to) const { return from < to ? up_ : down_; }
  const std::vector<std::int64_t>& shape_of(int microbatch, int stage) const;
  void connect(const schedule::Placement& placement) const;

  Options options_;
  comm::Group up_, down_, tp_;  ///< up: of messages to higher ranks; both over the ranks of the pipeline
  std::vector<std::vector<std::int64_t>> shapes_;  ///< by microbatch, where they vary
};

}  // namespace megatron::pipeline
