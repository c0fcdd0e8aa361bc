#include "megatron/interchange/hugging_face/fused_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/interchange/stored_tensor.h"
#include "megatron/plan/rule_list.h"

// E experts, h hidden, f features.
namespace megatron::interchange {
namespace {

using checkpoint::Box;
using checkpoint::WeightSource;
using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kBlockValues = 32, kBlockBytes = 16;
constexpr int kMaxScale = 252;  // 6 x 2^(252 - 127) is the greatest that float32 and bf16 hold
constexpr const char *kGateUp = "gate_up_proj", *kDown = "down_proj", *kBlocks = "_blocks", *kScales = "_scales",
                     *kBias = "_bias";

/// A slice of an expert in a fused tensor.
struct InFused {
  std::string source;  ///< the tensor; of MXFP4 without its end
  std::int64_t expert = 0;
  Sizes shape;                       ///< [rows, columns], or [rows]
  std::int64_t first = 0, step = 1;  ///< of the rows, along the tensor's dimension of outputs
  bool packed = false;               ///< MXFP4
  std::string dtype;
};

class ApartExperts : public WeightSource {
 public:
  explicit ApartExperts(std::shared_ptr<const WeightSource> folder) : folder_(std::move(folder)) {
    for (const std::string& tensor : folder_->tensors()) {
      const std::size_t dot = tensor.rfind('.');
      const std::string end = dot == std::string::npos ? "" : tensor.substr(dot + 1);
      bool fused = false;
      for (const char* matrix : {kGateUp, kDown}) {
        if (end == matrix)
          add(tensor, dot, matrix, *folder_->shape(tensor), Kind::Matrix);
        else if (end == std::string(matrix) + kBias)
          add(tensor, dot, matrix, *folder_->shape(tensor), Kind::Bias);
        else if (end == std::string(matrix) + kBlocks)
          add(tensor.substr(0, tensor.size() - std::string_view(kBlocks).size()), dot, matrix, unpacked_shape(tensor),
              Kind::Packed);
        else if (end == std::string(matrix) + kScales)
          check_scales(tensor);
        else
          continue;
        fused = true;
      }
      if (!fused) plain_.insert(tensor);
    }
  }

  std::string name() const override { return folder_->name(); }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names(plain_.begin(), plain_.end());
    for (const auto& [tensor, place] : apart_) names.push_back(tensor);
    return names;
  }
  const Sizes* shape(const std::string& tensor) const override {
    const auto found = apart_.find(tensor);
    if (found != apart_.end()) return &found->second.shape;
    return plain_.contains(tensor) ? folder_->shape(tensor) : nullptr;
  }
  std::string dtype(const std::string& tensor) const override {
    const auto found = apart_.find(tensor);
    return found != apart_.end() ? found->second.dtype : folder_->dtype(tensor);
  }

  void read(const std::string& tensor, const Box& box, const at::Tensor& into) const override {
    const auto found = apart_.find(tensor);
    if (found == apart_.end()) return folder_->read(tensor, box, into);
    if (!checkpoint::inside(box, found->second.shape))
      throw std::logic_error(concat("a slice that lies outside of \"", tensor, "\""));
    if (into.numel() == 0) return;
    const InFused& place = found->second;
    const std::int64_t first = place.first + box.offset[0] * place.step, span = (box.shape[0] - 1) * place.step + 1;
    if (place.packed) {
      into.copy_(unpacked(place, box, first, span));
      return;
    }
    if (box.shape.size() == 1) {
      const at::Tensor rows = at::empty({1, span}, into.options());
      folder_->read(place.source, {{place.expert, first}, {1, span}}, rows);
      into.copy_(rows.select(0, 0).slice(0, 0, span, place.step));
      return;
    }
    const at::Tensor columns = at::empty({1, box.shape[1], span}, into.options());
    folder_->read(place.source, {{place.expert, box.offset[1], first}, {1, box.shape[1], span}}, columns);
    into.copy_(columns.select(0, 0).slice(1, 0, span, place.step).t());
  }

 private:
  enum class Kind : std::uint8_t { Matrix, Bias, Packed };

  /// Scales belong to blocks, which read them.
  void check_scales(const std::string& scales) const {
    const std::string matrix = scales.substr(0, scales.size() - std::string_view(kScales).size());
    if (folder_->shape(matrix + kBlocks) == nullptr) refuse(scales, "have the blocks that it scales", "none");
  }

  [[noreturn]] void refuse(const std::string& tensor, const std::string& rule, const std::string& got) const {
    throw ConfigError(
        rule_got_fix(concat(name(), ": \"", printable(tensor), "\" must ", rule, "."), got, "fetch the folder again"));
  }

  /// Of the matrix [E, outputs, inputs] that blocks stand for, as [E, inputs, outputs].
  Sizes unpacked_shape(const std::string& blocks) const {
    const std::string scales = blocks.substr(0, blocks.size() - std::string_view(kBlocks).size()) + kScales;
    const Sizes shape = *folder_->shape(blocks);
    if (shape.size() != 4 || shape[3] != kBlockBytes || shape[2] > (std::int64_t{1} << 40))
      refuse(blocks, "be blocks of 32 numbers in 4 bits, [experts, outputs, inputs / 32, 16]",
             checkpoint::shape_text(shape));
    const Sizes* const of_scales = folder_->shape(scales);
    if (of_scales == nullptr || *of_scales != Sizes{shape[0], shape[1], shape[2]})
      refuse(scales, "have a scale of each block", of_scales == nullptr ? "none" : checkpoint::shape_text(*of_scales));
    for (const std::string& tensor : {blocks, scales})
      if (folder_->dtype(tensor) != "U8") refuse(tensor, "be bytes, U8", folder_->dtype(tensor));
    return {shape[0], shape[2] * kBlockValues, shape[1]};
  }

  /// `shape`: [E, inputs, outputs], of a bias [E, outputs].
  void add(const std::string& source, std::size_t dot, const std::string& matrix, const Sizes& shape, Kind kind) {
    const bool halves = matrix == kGateUp, bias = kind == Kind::Bias;
    if (shape.size() != (bias ? 2 : 3) || (halves && shape.back() % 2 != 0))
      refuse(source,
             concat("be of all experts, [experts, ", bias ? "" : "inputs, ", "outputs]",
                    halves ? " with as many gates as values" : ""),
             checkpoint::shape_text(shape));
    if (shape[0] > plan::kMaxExperts)
      refuse(source, concat("be of at most ", plan::kMaxExperts, " experts"), concat(shape[0]));
    const std::int64_t outputs = shape.back() / (halves ? 2 : 1);
    const std::vector<const char*> parts = halves ? std::vector{"gate_proj", "up_proj"} : std::vector{kDown};
    for (std::int64_t expert = 0; expert < shape[0]; ++expert)
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const std::string tensor =
            concat(source.substr(0, dot + 1), expert, ".", parts[part], bias ? ".bias" : ".weight");
        const InFused place{.source = source,
                            .expert = expert,
                            .shape = bias ? Sizes{outputs} : Sizes{outputs, shape[1]},
                            .first = static_cast<std::int64_t>(part),
                            .step = halves ? 2 : 1,
                            .packed = kind == Kind::Packed,
                            .dtype = kind == Kind::Packed ? "BF16" : folder_->dtype(source)};
        if (!apart_.emplace(tensor, place).second) refuse(source, "be there in one form", "also in blocks of 4 bits");
      }
  }

  /// Rows of an expert, in float32.
  at::Tensor unpacked(const InFused& place, const Box& box, std::int64_t first, std::int64_t span) const {
    const std::int64_t begin = box.offset[1] / kBlockValues * kBlockValues, end = box.offset[1] + box.shape[1];
    const std::int64_t group = begin / kBlockValues, groups = (end - begin + kBlockValues - 1) / kBlockValues;
    const at::Tensor all_blocks = at::empty({1, span, groups, kBlockBytes}, at::kByte),
                     all_scales = at::empty({1, span, groups}, at::kByte);
    folder_->read(place.source + kBlocks, {{place.expert, first, group, 0}, {1, span, groups, kBlockBytes}},
                  all_blocks);
    folder_->read(place.source + kScales, {{place.expert, first, group}, {1, span, groups}}, all_scales);
    const at::Tensor blocks = all_blocks.slice(1, 0, span, place.step),
                     scales = all_scales.slice(1, 0, span, place.step);
    if (const auto most = scales.max().item<std::int64_t>(); most > kMaxScale)
      refuse(place.source + kScales, concat("be at most ", kMaxScale, ", as more stands for no finite number"),
             concat(most));
    const at::Tensor numbers = at::tensor(
        {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0}, at::kFloat);
    const at::Tensor lower = blocks.bitwise_and(0x0F).to(at::kLong), upper = blocks.__rshift__(4).to(at::kLong);
    const at::Tensor codes = at::stack({lower, upper}, -1).flatten(-2);  // [1, rows, groups, 32]
    const at::Tensor exponents = scales.to(at::kInt).sub_(127).unsqueeze(3);
    const at::Tensor values =
        at::ldexp(numbers.index_select(0, codes.flatten()).view(codes.sizes()), exponents).flatten(2).select(0, 0);
    return values.narrow(1, box.offset[1] - begin, box.shape[1]);
  }

  std::shared_ptr<const WeightSource> folder_;
  std::set<std::string> plain_;
  std::map<std::string, InFused> apart_;
};

/// What an expert's tensor is a part of.
struct OfExpert {
  std::string fused;
  std::int64_t expert = 0;
  std::int64_t part = 0, parts = 1;
};

/// "NAME.3.gate_proj.weight" -> NAME.gate_up_proj; empty where it is of no expert.
std::optional<OfExpert> of_expert(std::string_view tensor) {
  struct End {
    const char *theirs, *fused;
    std::int64_t part, parts;
  };
  for (const auto& [theirs, fused, part, parts] :
       {End{".gate_proj.weight", ".gate_up_proj", 0, 2}, End{".up_proj.weight", ".gate_up_proj", 1, 2},
        End{".gate_proj.bias", ".gate_up_proj_bias", 0, 2}, End{".up_proj.bias", ".gate_up_proj_bias", 1, 2},
        End{".down_proj.weight", ".down_proj", 0, 1}, End{".down_proj.bias", ".down_proj_bias", 0, 1}}) {
    if (!tensor.ends_with(theirs)) continue;
    const std::string_view rest = tensor.substr(0, tensor.size() - std::string_view(theirs).size());
    const std::size_t dot = rest.rfind('.');
    if (dot == std::string_view::npos || !rest.substr(0, dot).ends_with(".experts")) return std::nullopt;
    std::int64_t expert = 0;
    const auto [end, error] = std::from_chars(rest.data() + dot + 1, rest.data() + rest.size(), expert);
    if (error != std::errc() || end != rest.data() + rest.size()) return std::nullopt;
    return OfExpert{concat(rest.substr(0, dot), fused), expert, part, parts};
  }
  return std::nullopt;
}

class FusedExperts : public WeightSource {
 public:
  explicit FusedExperts(const WeightSource& weights) : weights_(weights) {
    for (const std::string& tensor : weights.tensors()) {
      const std::optional<OfExpert> place = of_expert(tensor);
      if (!place) {
        plain_.push_back(tensor);
        continue;
      }
      Fused& fused = fused_[place->fused];
      fused.parts = place->parts;
      fused.pieces[{place->expert, place->part}] = tensor;
    }
    for (auto& [name, fused] : fused_) set_shape(name, fused);
  }

  std::string name() const override { return weights_.name(); }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names = plain_;
    for (const auto& [tensor, fused] : fused_) names.push_back(tensor);
    return names;
  }
  const Sizes* shape(const std::string& tensor) const override {
    const auto found = fused_.find(tensor);
    if (found != fused_.end()) return &found->second.shape;
    return of_expert(tensor) ? nullptr : weights_.shape(tensor);
  }
  std::string dtype(const std::string& tensor) const override {
    const auto found = fused_.find(tensor);
    return weights_.dtype(found == fused_.end() ? tensor : found->second.pieces.begin()->second);
  }

  void read(const std::string& tensor, const Box& box, const at::Tensor& into) const override {
    const auto found = fused_.find(tensor);
    if (found == fused_.end()) return weights_.read(tensor, box, into);
    const Fused& fused = found->second;
    if (box.shape != fused.shape) throw std::logic_error("tensors of experts are written whole");
    for (const auto& [place, piece] : fused.pieces) {
      const at::Tensor expert = into.select(0, place.first),
                       part = expert.slice(-1, place.second, expert.size(-1), fused.parts);
      const Sizes& own = *weights_.shape(piece);
      weights_.read(piece, {Sizes(own.size(), 0), own}, own.size() == 2 ? part.t() : part);
    }
  }

 private:
  struct Fused {
    Sizes shape;
    std::int64_t parts = 1;
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> pieces;  ///< by expert and part
  };

  void set_shape(const std::string& name, Fused& fused) const {
    const std::string& first = fused.pieces.begin()->second;
    const Sizes own = *weights_.shape(first);
    const auto experts = static_cast<std::int64_t>(fused.pieces.size()) / fused.parts;
    fused.shape = {experts, own[0] * fused.parts};
    if (own.size() == 2) fused.shape.insert(fused.shape.begin() + 1, own[1]);
    std::int64_t number = 0;
    for (const auto& [place, piece] : fused.pieces) {
      const bool next = place.first == number / fused.parts && place.second == number % fused.parts;
      if (!next || *weights_.shape(piece) != own || weights_.dtype(piece) != weights_.dtype(first))
        throw ConfigError(rule_got_fix(
            concat(weights_.name(), ": the experts of \"", printable(name), "\" must all be there, alike."),
            printable(piece)));
      ++number;
    }
  }

  const WeightSource& weights_;
  std::vector<std::string> plain_;
  std::map<std::string, Fused> fused_;
};

}  // namespace

std::shared_ptr<const WeightSource> apart_experts(std::shared_ptr<const WeightSource> folder) {
  return std::make_shared<ApartExperts>(std::move(folder));
}

std::unique_ptr<const WeightSource> fused_experts(const WeightSource& weights) {
  return std::make_unique<FusedExperts>(weights);
}

}  // namespace megatron::interchange
