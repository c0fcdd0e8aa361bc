#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/generate/staged_model.h"

namespace megatron::generate {

/// A model that writes several texts, each in a slot with blocks of keys and values: what one gets does not depend on
/// the others (CachedGpt::step). Logits are float64 on the CPU.
class SlotModel {
 public:
  virtual ~SlotModel() = default;
  /// How many blocks there are for all slots, and tokens in each.
  virtual std::int64_t blocks() const = 0;
  virtual std::int64_t block_tokens() const = 0;
  std::int64_t tokens() const { return blocks() * block_tokens(); }  ///< of all blocks: no text can be longer
  /// Gives a free slot these blocks, in the order of its tokens, of which they have the first `length`. `adapter`: that
  /// of the slot's text (PagedCache), 0: none.
  virtual void begin(std::int64_t slot, std::span<const std::int64_t> blocks, std::int64_t length,
                     std::int64_t adapter) = 0;
  /// Gives a slot blocks that follow those it has.
  virtual void extend(std::int64_t slot, std::span<const std::int64_t> blocks) = 0;
  /// Reads tokens that follow what the slot has -> logits [1, vocab] after the last; `all`: [tokens, vocab] after each.
  virtual at::Tensor read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all) = 0;
  /// Reads one token in each of several slots -> logits [slots, vocab].
  virtual at::Tensor write(std::span<const std::int64_t> slots, std::span<const std::int64_t> tokens) = 0;
  virtual void free(std::int64_t slot) = 0;
  /// Nothing is to be done. Called every second or so.
  virtual void idle() {}
};

/// The slots of a model that some ranks hold together. Its first rank calls the members; the others follow() them.
class RankSlots : public SlotModel {
 public:
  /// `world`: all ranks, whose parts of the model `model` is. The model must outlive this. Takes the memory of
  /// `blocks`, or as few as another rank asks for: what is promised to clients follows from tokens(). Collective over
  /// `world`.
  RankSlots(const StagedModel& model, comm::Group world, at::Device device, std::int64_t blocks);

  std::int64_t blocks() const override { return blocks_; }
  std::int64_t block_tokens() const override;
  void begin(std::int64_t slot, std::span<const std::int64_t> blocks, std::int64_t length,
             std::int64_t adapter) override;
  void extend(std::int64_t slot, std::span<const std::int64_t> blocks) override;
  at::Tensor read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all) override;
  at::Tensor write(std::span<const std::int64_t> slots, std::span<const std::int64_t> tokens) override;
  void free(std::int64_t slot) override;
  void idle() override;

  /// Does what the first rank does, until it calls stop().
  void follow();
  void stop();

 private:
  enum class Call : std::int64_t { Begin, Extend, Read, Write, Free, Idle, Stop };
  /// What a rank is to do.
  struct Command {
    Call call;
    std::int64_t a = 0, b = 0, c = 0;
    std::vector<std::int64_t> values;
  };
  void tell(const Command& command) const;
  Command hear() const;
  at::Tensor run(const Command& command);
  at::Tensor lead(const Command& command);

  const StagedModel& model_;
  comm::Group world_;
  at::Device device_;
  std::int64_t blocks_;
  model::KvPool pool_;
  std::map<std::int64_t, model::PagedCache> caches_;
};

}  // namespace megatron::generate
