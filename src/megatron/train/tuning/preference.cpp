#include "megatron/train/tuning/preference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/checksum.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/comm/autograd.h"
#include "megatron/comm/first_rank.h"
#include "megatron/interchange/hugging_face/safetensors_folder.h"
#include "megatron/train/iteration.h"

namespace megatron::train {
namespace {

constexpr const char *kTensor = "log_probabilities", *kDigests = "answer_digests";
constexpr std::int64_t kVocabDimension = -1;

/// [b]: of each text the sum of the log-probabilities of its counted labels, in float32 or wider. Of ranks that share
/// sequences it is that of whole ones, and its gradient goes to each one's own tokens.
at::Tensor log_probabilities(const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch,
                             bool training) {
  at::Tensor logits_sbv = stage.logits(std::move(x), batch, training);
  if (logits_sbv.scalar_type() != at::kDouble) logits_sbv = logits_sbv.to(at::kFloat);
  const at::Tensor labels_sb = batch.labels_bs.t();
  const at::Tensor chosen = logits_sbv.gather(-1, labels_sb.unsqueeze(-1)).squeeze(-1);
  const at::Tensor own =
      ((chosen - at::logsumexp(logits_sbv, at::IntArrayRef(kVocabDimension))) * batch.loss_mask_bs.t()).sum(0);
  return comm::reduce_from_group(own, stage.options().sequence.ranks);
}

/// [b / 2]: whether the chosen answer of each pair has counted tokens, on some of the ranks that share sequences.
at::Tensor counted_pairs(const model::Batch& batch, const comm::Group& sequence) {
  const at::Tensor tokens = batch.loss_mask_bs.sum(1).slice(0, 0, batch.loss_mask_bs.size(0), 2).contiguous();
  sequence.all_reduce(tokens);
  return tokens.gt(0);
}

/// Every other element, from `first` on.
at::Tensor of_pairs(const at::Tensor& x, std::int64_t first) { return x.slice(0, first, x.size(0), 2); }

constexpr std::array kFigures = {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                 "rewards/margins", "logps/chosen",     "logps/rejected"};

/// Those of texts with log-probabilities p [b] and rewards [b], summed over the pairs that `counts` [b / 2] has.
at::Tensor figures_of(const at::Tensor& p, const at::Tensor& rewards, const at::Tensor& counts) {
  const at::Tensor chosen = of_pairs(rewards, 0), rejected = of_pairs(rewards, 1);
  const at::Tensor all = at::stack(
      {chosen, rejected, chosen.gt(rejected).to(p.scalar_type()), chosen - rejected, of_pairs(p, 0), of_pairs(p, 1)});
  return (all * counts).sum(1, /*keepdim=*/false, at::kDouble);
}

/// Collects log-probabilities and has no loss.
model::LossSum reference_pass(const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch,
                              bool training) {
  model::LossSum loss;
  loss.non_loss = log_probabilities(stage, std::move(x), batch, training).to(at::kCPU, at::kDouble);
  loss.sum = at::zeros({}, loss.non_loss.options());
  return loss;
}

std::vector<double> compute_references(const plan::ResolvedRun& run, Engine& engine, const DatasetBatches& batches) {
  const std::int64_t documents = batches.dataset().documents(),
                     unit = run.config.train.micro_batch_size * run.grid.sample_shares();
  auto samples = microbatches(run, engine.context, 0, (documents + unit - 1) / unit * unit);
  for (auto& ids : samples)
    for (std::int64_t& id : ids) id = id < documents ? id : DatasetBatches::kNoSample;
  const ForwardStep own = engine.pipeline.forward_step();
  engine.pipeline.use({.loss = reference_pass, .collected = {}});
  const Evaluation evaluation = evaluate(
      engine.pipeline, engine.context, samples.size(),
      [&](std::size_t m) { return on_device(batches.get(samples[m]), engine.context.device()); }, false);
  engine.pipeline.use(own);
  std::vector<double> references(static_cast<std::size_t>(documents), 0.0);
  // Ranks of the last stage alone have them; of those of tp, and of those that share sequences, each has all.
  if (engine.context.tensor().rank() == 0 && engine.context.sequence().rank() == 0)
    for (std::size_t m = 0; m < evaluation.non_loss.size(); ++m)
      for (std::size_t i = 0; i < samples[m].size(); ++i)
        if (samples[m][i] != DatasetBatches::kNoSample)
          references[static_cast<std::size_t>(batches.dataset().document_of(samples[m][i]))] =
              evaluation.non_loss[m].const_data_ptr<double>()[i];
  const at::Tensor all = at::from_blob(references.data(), {documents}, at::kDouble).clone().to(engine.context.device());
  engine.context.world().all_reduce(all);  // others have zeros where one has a number
  const at::Tensor sum = all.cpu();
  std::copy_n(sum.const_data_ptr<double>(), documents, references.begin());
  return references;
}

/// A checksum per document of what its log-probability depends on: tokens, labels and which of these count.
std::vector<std::int64_t> digests_of(const data::Dataset& dataset) {
  const auto length = static_cast<std::size_t>(dataset.seq_length());
  std::vector<std::int64_t> ids(2 * length), digests(static_cast<std::size_t>(dataset.documents()));
  std::vector<float> mask(length);
  const std::span<std::int64_t> tokens(ids.data(), length), labels(ids.data() + length, length);
  const auto bytes = [](const auto& of) {
    return std::string_view(reinterpret_cast<const char*>(of.data()), std::as_bytes(std::span(of)).size());
  };
  for (std::int64_t i = 0; i < dataset.documents(); ++i) {
    dataset.get(i, {.tokens = tokens, .labels = labels, .loss_mask = mask});
    digests[static_cast<std::size_t>(dataset.document_of(i))] =
        std::int64_t{crc32c(bytes(ids))} << 31 ^ std::int64_t{crc32c(bytes(mask))};
  }
  return digests;
}

void write_references(const std::filesystem::path& path, const std::vector<double>& references,
                      const std::vector<std::int64_t>& digests) {
  std::string header;
  checkpoint::make_safetensors({{.name = kTensor, .dtype = "F64", .shape = {std::ssize(references)}},
                                {.name = kDigests, .dtype = "I64", .shape = {std::ssize(digests)}}},
                               {{"format", "pt"}}, header);
  make_folder(path.parent_path());
  AtomicFile file(path);
  file.write(header);
  file.write(std::as_bytes(std::span(references)));
  file.write(std::as_bytes(std::span(digests)));
  file.commit();
}

/// Throws ConfigError where the file is not there, or of other answers than those that `digests` are of.
std::vector<double> read_references(const std::filesystem::path& path, const std::vector<std::int64_t>& digests) {
  if (!std::filesystem::exists(path)) {
    // Of a set that a run has not had from its beginning on there never was one; training has one always.
    const bool further = !path.filename().string().starts_with("train");
    throw ConfigError(rule_got_fix(
        concat("A run of preferences resumes with the log-probabilities of the model that it began with",
               further ? ", also of what it validates on." : "."),
        concat(path.string(), " is not there", further ? ": the run began without validation, or it is lost" : ""),
        concat(further ? "leave validation out: --eval-interval 0; or bring the file back" : "bring the file back",
               "; or begin from the weights alone: --finetune --load, and another --train.out")));
  }
  const interchange::SafetensorsFolder folder(path.parent_path(), path.filename().string());
  const std::vector<std::int64_t> shape{std::ssize(digests)};
  const auto refuse = [&](const std::string& got) {
    throw ConfigError(rule_got_fix(concat(path.string(), " must be of the run's preferences."), got,
                                   "the data, tokenizer and data.seq_length with which the run began; or another "
                                   "--train.out"));
  };
  for (const char* name : {kTensor, kDigests})
    if (const auto* const found = folder.shape(name); found == nullptr || *found != shape)
      refuse(concat("not of ", digests.size(), " answers"));
  std::vector<std::int64_t> kept(digests.size());
  folder.read(kDigests, {{0}, shape}, at::from_blob(kept.data(), shape, at::kLong));
  if (const auto differs = std::ranges::mismatch(kept, digests); differs.in1 != kept.end())
    refuse(concat("answer ", differs.in1 - kept.begin() + 1, " of ", digests.size(), " was another"));
  std::vector<double> references(digests.size());
  folder.read(kTensor, {{0}, shape}, at::from_blob(references.data(), shape, at::kDouble));
  return references;
}

}  // namespace

ForwardStep preference_step(const config::DpoConfig& dpo) {
  const double beta = dpo.beta, smoothing = dpo.label_smoothing;
  const auto loss = [beta, smoothing](const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch,
                                      bool training) {
    const at::Tensor p = log_probabilities(stage, std::move(x), batch, training),
                     ratio = p - batch.reference_b.to(p.scalar_type());
    const at::Tensor margin = (of_pairs(ratio, 0) - of_pairs(ratio, 1)) * beta;
    const comm::Group& sequence = stage.options().sequence.ranks;
    const at::Tensor pairs = counted_pairs(batch, sequence), counts = pairs.to(p.scalar_type());
    at::Tensor losses = -at::log_sigmoid(margin);
    if (smoothing > 0) losses = losses * (1 - smoothing) - at::log_sigmoid(-margin) * smoothing;
    model::LossSum sum;
    sum.sum = (losses * counts).sum();
    sum.figures = figures_of(p.detach(), ratio.detach() * beta, counts);
    if (sequence.rank() > 0) {  // the first has the value for all, each the gradient of its tokens
      sum.sum = sum.sum - sum.sum.detach();
      sum.figures = at::zeros_like(sum.figures);
      return sum;
    }
    // Without asking the device, where the host can see whole sequences.
    const at::Tensor known = sequence.size() == 1 ? counted_pairs(host_part(batch), sequence) : pairs;
    sum.count = static_cast<double>(known.sum().item<std::int64_t>());
    return sum;
  };
  return {.loss = loss, .collected = {}, .figures = {kFigures.begin(), kFigures.end()}};
}

References reference_log_probabilities(const plan::ResolvedRun& run, Engine& engine, const DatasetBatches& batches,
                                       const std::filesystem::path& file, bool resumes) {
  std::vector<double> references;
  if (!resumes) references = compute_references(run, engine, batches);
  const comm::Group& world = engine.context.world();
  comm::run_on_every_rank(
      world,
      [&] {
        if (resumes)
          references = read_references(file, digests_of(batches.dataset()));
        else if (world.rank() == 0)
          write_references(file, references, digests_of(batches.dataset()));
      },
      beat_of(run.config));
  return std::make_shared<const std::vector<double>>(std::move(references));
}

}  // namespace megatron::train
