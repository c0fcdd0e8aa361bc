#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace megatron::generate {

/// Who has which block of a pool of keys and values: a text alone, or all texts whose prompts begin alike. Numbers
/// only: the memory is the model's (SlotModel).
///
/// Prefixes are trees, one of each adapter: each is its parent and one unit of tokens more, whose blocks nobody writes
/// again. A prefix that no text holds is kept until its blocks are needed; the one released longest ago goes first, and
/// before its parent.
class BlockPool {
 public:
  class Prefix {
   public:
    /// The blocks of all of its tokens, in their order.
    std::vector<std::int64_t> blocks() const;
    std::int64_t units() const { return units_; }

   private:
    friend BlockPool;
    Prefix* parent_ = nullptr;
    const std::vector<std::int64_t>* key_ = nullptr;  ///< among its parent's children: the tokens of its unit
    std::vector<std::int64_t> own_blocks_ = {};
    std::int64_t units_ = 0;      ///< from the beginning
    std::int64_t holders_ = 0;    ///< texts that hold it or a prefix below it
    std::uint64_t released_ = 0;  ///< when the last of them released it
    std::map<std::vector<std::int64_t>, std::unique_ptr<Prefix>> children_ = {};
  };

  /// `unit_tokens`: a multiple of block_tokens.
  BlockPool(std::int64_t blocks, std::int64_t block_tokens, std::int64_t unit_tokens);

  std::int64_t blocks_of(std::int64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }
  std::int64_t unit_tokens() const { return unit_blocks_ * block_tokens_; }
  std::int64_t unit_blocks() const { return unit_blocks_; }
  std::int64_t size() const { return size_; }
  std::int64_t free() const { return std::ssize(free_); }
  std::int64_t kept() const { return std::ssize(kept_) * unit_blocks_; }  ///< of prefixes that no text holds

  /// Whether take() can give so many.
  bool has(std::int64_t count) const { return count <= free() + kept(); }
  /// Blocks for a text alone; prefixes that are kept go for them. Throws std::logic_error where has() is false.
  std::vector<std::int64_t> take(std::int64_t count);
  void give_back(std::span<const std::int64_t> blocks);

  /// The longest prefix that `tokens` begin with; null: none. `adapter`: the one that the text was asked for with, 0
  /// none; texts of others have prefixes of their own, as their keys and values differ.
  Prefix* find(std::span<const std::int64_t> tokens, std::int64_t adapter = 0);
  /// A text begins and ends to use a prefix, which may be null.
  void hold(Prefix* prefix);
  void release(Prefix* prefix);
  /// Makes a text's blocks of the unit that follows `held`, which it holds or which is null, a prefix that it holds in
  /// its place. Null where there is one of these tokens already: the blocks stay the text's. `adapter` as of find().
  Prefix* add(Prefix* held, std::span<const std::int64_t> unit, std::span<const std::int64_t> blocks,
              std::int64_t adapter = 0);

 private:
  void drop_oldest();

  std::int64_t size_, block_tokens_, unit_blocks_;
  std::vector<std::int64_t> free_;
  std::map<std::int64_t, Prefix> roots_;   ///< by adapter
  std::map<std::uint64_t, Prefix*> kept_;  ///< by when they were released
  std::uint64_t clock_ = 0;
};

}  // namespace megatron::generate
