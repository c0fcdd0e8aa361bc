#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {

/// Lets the contract, which brings tensors of the host, run over a transport between GPUs: copies there and back.
class StagingBackend final : public Backend {
 public:
  explicit StagingBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }

  WorkHandle all_reduce(at::Tensor inout, ReduceOp op) override {
    const at::Tensor there = to_device(inout);
    return staged(inner_->all_reduce(there, op), inout, there);
  }
  WorkHandle all_gather(at::Tensor out, at::Tensor in) override {
    const at::Tensor there = to_device(out);
    return staged(inner_->all_gather(there, to_device(in)), out, there);
  }
  WorkHandle reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    const at::Tensor there = to_device(out);
    return staged(inner_->reduce_scatter(there, to_device(in), op), out, there);
  }
  WorkHandle broadcast(at::Tensor inout, int root) override {
    const at::Tensor there = to_device(inout);
    return staged(inner_->broadcast(there, root), inout, there);
  }
  WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    const at::Tensor there = to_device(out);
    return staged(inner_->all_to_all(there, to_device(in)), out, there);
  }
  WorkHandle send(at::Tensor tensor, int destination, int tag) override {
    return inner_->send(to_device(tensor), destination, tag);
  }
  WorkHandle recv(at::Tensor tensor, int source, int tag) override {
    const at::Tensor there = to_device(tensor);
    return staged(inner_->recv(there, source, tag), tensor, there);
  }
  WorkHandle barrier() override { return inner_->barrier(); }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks) override {
    auto part = inner_->split(ranks);
    return part ? std::make_shared<StagingBackend>(std::move(part)) : nullptr;
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  class Staged final : public Work {
   public:
    Staged(WorkHandle work, at::Tensor here, at::Tensor there)
        : work_(std::move(work)), here_(std::move(here)), there_(std::move(there)) {}
    ~Staged() override { wait(); }
    void wait() override {
      if (!work_) return;
      std::exchange(work_, nullptr)->wait();
      here_.copy_(there_);
    }

   private:
    WorkHandle work_;
    at::Tensor here_, there_;
  };

  at::Tensor to_device(const at::Tensor& t) const { return t.to(inner_->device()); }
  static WorkHandle staged(WorkHandle work, at::Tensor here, at::Tensor there) {
    return std::make_shared<Staged>(std::move(work), std::move(here), std::move(there));
  }

  std::shared_ptr<Backend> inner_;
};

}  // namespace megatron::comm
