#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {

/// Wraps a backend and counts what goes through it on this rank: the tests that a layer communicates exactly as often
/// as its header says. Groups split off it count by themselves, each in its own CountingBackend.
class CountingBackend : public Backend {
 public:
  struct Count {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;  ///< of the tensors that this rank brought in (recv: got)
  };

  explicit CountingBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  /// A group that counts, over the same ranks. `group` has at least two.
  static Group wrap(const Group& group) { return Group(std::make_shared<CountingBackend>(group.backend())); }
  /// The counter of a group that wrap() or a split of its result gave; throws std::bad_cast for another.
  static CountingBackend& of(const Group& group) { return dynamic_cast<CountingBackend&>(*group.backend()); }

  /// By name: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv", "barrier".
  Count count(const std::string& operation) const {
    const auto found = counts_.find(operation);
    return found == counts_.end() ? Count() : found->second;
  }
  const std::map<std::string, Count>& counts() const { return counts_; }
  void reset() { counts_.clear(); }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return "counting(" + inner_->name() + ")"; }
  at::Device device() const override { return inner_->device(); }

  WorkHandle all_reduce(at::Tensor inout, ReduceOp op) override {
    add("all_reduce", inout);
    return inner_->all_reduce(std::move(inout), op);
  }
  WorkHandle all_gather(at::Tensor out, at::Tensor in) override {
    add("all_gather", in);
    return inner_->all_gather(std::move(out), std::move(in));
  }
  WorkHandle reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    add("reduce_scatter", in);
    return inner_->reduce_scatter(std::move(out), std::move(in), op);
  }
  WorkHandle broadcast(at::Tensor inout, int root) override {
    add("broadcast", inout);
    return inner_->broadcast(std::move(inout), root);
  }
  WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    add("all_to_all", in);
    return inner_->all_to_all(std::move(out), std::move(in));
  }
  WorkHandle send(at::Tensor tensor, int destination, int tag) override {
    add("send", tensor);
    return inner_->send(std::move(tensor), destination, tag);
  }
  WorkHandle recv(at::Tensor tensor, int source, int tag) override {
    add("recv", tensor);
    return inner_->recv(std::move(tensor), source, tag);
  }
  WorkHandle barrier() override {
    ++counts_["barrier"].calls;
    return inner_->barrier();
  }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks) override {
    auto part = inner_->split(ranks);
    return part ? std::make_shared<CountingBackend>(std::move(part)) : nullptr;
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  void add(const char* operation, const at::Tensor& tensor) {
    Count& count = counts_[operation];
    ++count.calls;
    count.bytes += static_cast<std::int64_t>(tensor.nbytes());
  }

  std::shared_ptr<Backend> inner_;
  std::map<std::string, Count> counts_;
};

}  // namespace megatron::comm
