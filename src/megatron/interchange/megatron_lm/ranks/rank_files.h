#pragma once
#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/checkpoint/weights.h"
#include "megatron/interchange/megatron_lm/torch_file.h"
#include "megatron/interchange/stored_tensor.h"

// The files that Megatron-LM's ranks of tensor and pipeline parallelism save in the format "torch".
namespace megatron::interchange {

/// The folders of a checkpoint by rank; every combination of the two is there.
struct RankGrid {
  int tp = 0, pp = 0;
  std::map<std::pair<int, int>, std::filesystem::path> folders;  ///< by (tp, pp)

  RankGrid of_first_tp() const;
};

/// Throws ConfigError where a rank is missing or a folder is another rank's.
RankGrid read_grid(const std::filesystem::path& folder);

/// The arguments in a rank's file. Throws ConfigError where there are none, or those of a version before today's order
/// of rows.
const PickleNode& arguments_of(const TorchFile& file);

/// The stack of layers that our name of a tensor of a layer begins with ("decoder.layers."); empty for others.
std::string layers_in(const std::string& ours);

/// The tensors of all ranks' files: "mp_rank_00_001/model0/decoder.layers.0.…", by their names within the part of the
/// model, layers counted within it.
class RankFiles : public checkpoint::WeightSource {
 public:
  /// One part of the model: a pipeline stage, or one of several on a rank.
  struct ModelChunk {
    std::string prefix;                                   ///< of its names here
    std::set<std::string> tensors = {};                   ///< ours, within the part
    std::vector<std::string> parameters = {};             ///< in the module's order; empty for a tied matrix's copy
    std::map<std::string, std::int64_t> num_layers = {};  ///< by stack: "decoder.layers."
    std::vector<std::string> tied_copies = {};            ///< of the word embedding, by their names here
  };

  RankFiles(std::filesystem::path folder, const RankGrid& grid);

  /// In the order of virtual stages: part `chunk` of pipeline rank `pp`.
  const std::vector<ModelChunk>& parts(int tp, int pp) const { return parts_.at({tp, pp}); }
  const TorchFile& file(int tp, int pp) const { return *by_rank_.at({tp, pp}); }
  /// Adds a tensor under a name of its own, whose bytes must live as long as this.
  void add(const std::string& name, StoredTensor tensor) { places_[name] = std::move(tensor); }
  /// Keeps a file open whose tensors are added.
  const TorchFile& keep(const std::filesystem::path& path) { return files_.emplace_back(path); }

  std::string name() const override { return folder_.string(); }
  std::vector<std::string> tensors() const override;
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override;
  std::string dtype(const std::string& tensor) const override { return places_.at(tensor).dtype; }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override;

 private:
  void add_file(const std::pair<int, int>& rank, const std::filesystem::path& folder);
  void add_part(const TorchFile& file, const PickleNode& model, const std::string& prefix,
                std::vector<ModelChunk>& parts);
  void add_tensors(const TorchFile& file, const PickleNode& dict, const std::string& name, ModelChunk& part, int depth);
  void add_tensor(const TorchFile& file, const PickleNode& node, const std::string& theirs, ModelChunk& part);

  std::filesystem::path folder_;
  bool tied_ = true;
  std::list<TorchFile> files_;  // whose places stay where they are
  std::map<std::pair<int, int>, const TorchFile*> by_rank_;
  std::map<std::pair<int, int>, std::vector<ModelChunk>> parts_;
  std::map<std::string, StoredTensor> places_;
  std::size_t num_visited_ = 0;
};

}  // namespace megatron::interchange
