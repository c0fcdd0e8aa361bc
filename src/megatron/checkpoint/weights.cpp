#include "megatron/checkpoint/weights.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <memory>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/plan/parameters/adapters.h"

namespace megatron::checkpoint {
namespace {

constexpr const char* kOtherModel = "give the model the options that the weights were made with";

/// The global shapes of what is trained of a model, by name.
std::map<std::string, std::vector<std::int64_t>> shapes_of(const plan::ModelShape& shape) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const plan::ParameterSpec& spec : plan::trained_parameters(shape, 1, 0, {plan::whole_model(shape.num_layers)}))
    shapes[spec.name] = true_shape(spec, shape);
  return shapes;
}

}  // namespace

std::vector<std::string> WeightReport::lines() const {
  std::vector<std::string> lines;
  for (const std::string& name : missing)
    lines.push_back(concat("missing: \"", printable(name), "\", which keeps its first value"));
  for (const std::string& name : unexpected)
    lines.push_back(concat("unexpected: \"", printable(name), "\", which the model does not have"));
  return lines;
}

std::unique_ptr<WeightSource> open_checkpoint(const std::filesystem::path& folder) {
  return std::make_unique<Reader>(find_checkpoint(folder));
}

WeightReport compare_weights(const WeightSource& source, const plan::ModelShape& shape, bool strict) {
  const auto wanted = shapes_of(shape);
  WeightReport report;
  std::string errors;
  const auto error = [&](const std::string& rule, const std::string& got, const std::string& fix) {
    errors += (errors.empty() ? "" : "\n") + rule_got_fix(rule, got, fix);
  };
  for (const auto& [name, wanted_shape] : wanted) {
    const std::vector<std::int64_t>* const got = source.shape(name);
    if (got == nullptr)
      report.missing.push_back(name);
    else if (*got != wanted_shape)
      error(concat(source.name(), ": \"", printable(name), "\" must have the shape ", shape_text(wanted_shape), "."),
            shape_text(*got), kOtherModel);
  }
  for (const std::string& name : source.tensors())
    if (!wanted.contains(name)) report.unexpected.push_back(name);
  if (strict && !report.empty()) {
    const std::vector<std::string> lines = report.lines();
    std::string got = lines[0];
    constexpr std::size_t kMaxListed = 20;
    for (std::size_t k = 1; k < std::min(lines.size(), kMaxListed); ++k) got += "\n        " + lines[k];
    if (lines.size() > kMaxListed) got += concat("\n        and ", lines.size() - kMaxListed, " more");
    error(concat("The weights of ", source.name(), " must be those of the model."), got,
          concat(kOtherModel, ", or take what is there: --load-strict false"));
  }
  if (!errors.empty()) throw ConfigError(errors);
  return report;
}

WeightReport load_weights(const WeightSource& source, const parallel::ParameterStore& parameters,
                          const plan::ModelShape& shape, bool strict) {
  WeightReport report = compare_weights(source, shape, strict);
  for (std::size_t index = 0; index < parameters.all().size(); ++index) {
    const parallel::ParameterPtr& parameter = parameters.all()[index];
    const plan::ParameterSpec& spec = parameter->spec;
    if (source.shape(spec.name) == nullptr) continue;
    const at::Tensor values =
        parameter->in_blocks ? at::zeros(spec.local_shape(), at::kFloat) : parameters.to_fill(index);
    for (const ShardedTensor& tensor : model_tensor(spec.name, spec, shape, values))
      source.read(tensor.name, {tensor.offset, tensor.data.sizes().vec()}, tensor.data);
    if (parameter->in_blocks)
      parameter->packed.replace(std::make_shared<const kernels::QuantizedMatrix>(
          kernels::quantize(values, *parameter->in_blocks, spec.name)));
    else
      parameters.keep(index, values);
  }
  return report;
}

}  // namespace megatron::checkpoint
