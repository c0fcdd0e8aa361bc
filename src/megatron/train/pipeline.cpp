#include "megatron/train/pipeline.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/model/stage_modules.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/schedule/pictures/draw.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/log/metric_fields.h"

namespace megatron::train {
namespace {

// The microbatches of one program: each is made once and released when the rank's last stage has had it.
class Microbatches {
 public:
  /// `share`: which tokens of each sample this rank has; `depths`: of prediction, which read tokens ahead; `precise`:
  /// the dtype of their masks.
  Microbatches(const MicrobatchSource& source, std::size_t num_microbatches, std::size_t num_stages,
               const plan::SequenceShare& share, std::int64_t depths, at::ScalarType precise)
      : source_(source),
        batches_(num_microbatches),
        uses_left_(num_microbatches, num_stages),
        share_(share),
        depths_(depths),
        precise_(precise) {}

  const model::Batch& look_at(std::size_t m) {
    if (!batches_[m]) batches_[m] = sequence_part(source_(m), share_, depths_, precise_);
    return *batches_[m];
  }
  model::Batch take(std::size_t m) {
    look_at(m);
    return --uses_left_[m] == 0 ? std::move(*std::exchange(batches_[m], std::nullopt)) : *batches_[m];
  }

 private:
  const MicrobatchSource& source_;
  std::vector<std::optional<model::Batch>> batches_;
  std::vector<std::size_t> uses_left_;
  const plan::SequenceShare share_;
  const std::int64_t depths_;
  const at::ScalarType precise_;
};

// Shape of what goes from stage to stage on one tensor-parallel rank.
std::vector<std::int64_t> boundary(const plan::ResolvedRun& run, std::int64_t seq_length, std::int64_t micro_batch) {
  const std::int64_t parts = run.config.parallel.sp ? run.grid.size(plan::Axis::Tp) : 1;
  return {seq_length / parts, micro_batch, run.shape.hidden};
}

// boundary() of a rank's tokens: a sequence's, divided between the ranks of context parallelism.
std::vector<std::int64_t> boundary_of_sequence(const plan::ResolvedRun& run) {
  return boundary(run, run.config.data.seq_length / run.grid.sequence_shares(), run.config.train.micro_batch_size);
}

// The same by stage, of a T5: from where the decoder has begun, the encoder's states and the decoder's stream.
std::vector<std::vector<std::int64_t>> boundaries(const plan::ResolvedRun& run) {
  std::vector<std::vector<std::int64_t>> shapes;
  if (!run.shape.encoder_decoder()) return shapes;
  const config::DataConfig& data = run.config.data;
  for (const plan::StageSpec& part : run.parts) {
    const bool both = part.first_layer + part.num_layers > run.shape.encoder_layers;
    shapes.push_back(boundary(run,
                              (data.seq_length + (both ? data.decoder_seq_length : 0)) / run.grid.sequence_shares(),
                              run.config.train.micro_batch_size));
  }
  return shapes;
}

class PipelineStage final : public pipeline::Stage {
 public:
  PipelineStage(const model::TransformerStage& model, const plan::ResolvedRun& run, const plan::StageSpec& part,
                Microbatches& batches, bool training, const LossScale& scale, const ForwardStep& step,
                std::vector<at::Tensor>& prepared)
      : model_(model),
        run_(run),
        part_(part),
        batches_(batches),
        training_(training),
        scale_(scale),
        step_(step),
        prepared_(prepared) {}

  pipeline::Output forward(int microbatch, at::Tensor x, bool partial) override {
    model::Batch batch = batches_.take(static_cast<std::size_t>(microbatch));
    batch.partial_recomputation = partial;
    batch.auxiliary_scale = scale_.gradients;
    if (!part_.output) return {model_.forward(std::move(x), batch, training_), 0};
    if (!prepared_.empty()) batch.prepared = std::move(prepared_.at(static_cast<std::size_t>(microbatch)));
    auto loss = step_.loss ? own_loss(std::move(x), batch)
                           : model_.loss(std::move(x), batch, training_, scale_.gradients, scale_.sentences);
    if (loss.sentence_sum.defined()) sentence_sums_.push_back(std::move(loss.sentence_sum));
    sentences_ += loss.sentences;
    depth_counts_.resize(std::max(depth_counts_.size(), loss.depth_counts.size()));
    for (std::size_t k = 0; k < loss.depth_counts.size(); ++k) depth_counts_[k] += loss.depth_counts[k];
    if (!loss.depth_sums.empty()) depth_sums_.push_back(std::move(loss.depth_sums));
    if (loss.task_logits.defined() && !training_) {
      task_logits_.resize(std::max(task_logits_.size(), static_cast<std::size_t>(microbatch) + 1));
      task_logits_[static_cast<std::size_t>(microbatch)] = std::move(loss.task_logits);
    }
    if (loss.non_loss.defined() && !training_) non_loss_.push_back(std::move(loss.non_loss));
    if (loss.figures.defined()) figures_.push_back(std::move(loss.figures));
    return {std::move(loss.sum), loss.count};
  }
  /// What the microbatches so far have.
  void add_to(PassResult& result) {
    for (const at::Tensor& sum : sentence_sums_) add_number(result.sentence_sum, sum);
    result.sentences += sentences_;
    if (!depth_counts_.empty()) result.depth_counts = depth_counts_;
    for (const std::vector<at::Tensor>& sums : depth_sums_) add_number(result.depth_sums, at::stack(sums));
    if (!task_logits_.empty()) result.task_logits = std::move(task_logits_);
    if (!non_loss_.empty()) result.non_loss = std::move(non_loss_);
    if (!figures_.empty()) result.figure_sums = at::stack(figures_).to(at::kDouble).sum(0);
  }
  std::vector<std::int64_t> boundary_shape(int microbatch) const override {
    const at::Tensor& tokens_bs = batches_.look_at(static_cast<std::size_t>(microbatch)).tokens_bs;
    return boundary(run_, tokens_bs.size(1), tokens_bs.size(0));
  }

 private:
  model::LossSum own_loss(at::Tensor x, model::Batch batch) const {
    if (!batch.loss_mask_bs.defined()) {
      const auto all_of = [](const at::Tensor& labels) {
        return at::ones_like(labels, labels.options().dtype(at::kFloat));
      };
      batch.loss_mask_bs = all_of(batch.labels_bs);
      if (batch.host) {
        model::Batch host = *batch.host;
        host.loss_mask_bs = all_of(host.labels_bs);
        batch.host = std::make_shared<const model::Batch>(std::move(host));
      }
    }
    const c10::AutoGradMode record(training_);
    model::LossSum loss = step_.loss(model_, std::move(x), batch, training_);
    if (!loss.sum.defined() || loss.sum.dim() != 0)
      throw std::logic_error("ForwardStep::loss must return the sum as a scalar");
    if (loss.figures.defined() != !step_.figures.empty() ||
        (loss.figures.defined() && loss.figures.sizes() != at::IntArrayRef{std::ssize(step_.figures)}))
      throw std::logic_error("ForwardStep::loss must return a number for each of ForwardStep::figures");
    // The same value, with gradients times the scale: those of the model's own loss have it from where they begin.
    if (training_ && scale_.gradients != 1)
      loss.sum = loss.sum.detach() + (loss.sum - loss.sum.detach()) * scale_.gradients;
    return loss;
  }

  const model::TransformerStage& model_;
  const plan::ResolvedRun& run_;
  const plan::StageSpec& part_;
  Microbatches& batches_;
  const bool training_;
  const LossScale scale_;
  const ForwardStep& step_;
  std::vector<at::Tensor>& prepared_;      // by microbatch
  std::vector<at::Tensor> task_logits_;    // by microbatch
  std::vector<at::Tensor> non_loss_;       // of the last stage, in the order of its microbatches
  std::vector<at::Tensor> figures_;        // likewise
  std::vector<at::Tensor> sentence_sums_;  // scalars, which no one waits for before the end
  double sentences_ = 0;
  std::vector<std::vector<at::Tensor>> depth_sums_;  // by microbatch, likewise
  std::vector<double> depth_counts_;
};

pipeline::Link make_link(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
                         const parallel::ParameterStore& parameters) {
  const comm::Group& pp = context.pipeline();
  if (pp.size() == 1) return {};
  const config::RunConfig& config = run.config;
  return {run.placement,
          pp,
          context.tensor(),
          {.shape = boundary_of_sequence(run),
           .shape_of_stage = boundaries(run),
           .tensor = model::stream_options(run.shape, parameters.options()),
           .shapes_vary = config.parallel.variable_seq_lengths,
           .scatter_gather = config.parallel.scatter_gather && !config.parallel.sp}};
}

// Whether the pipeline of this rank has one of log.profile_ranks.
bool is_profiled_pipeline(const plan::ResolvedRun& run, const parallel::ParallelContext& context) {
  if (!run.config.log.profile) return false;
  const std::vector<int> ranks = run.grid.peers(context.world().rank(), plan::Axis::Pp);
  const auto& named = run.config.log.profile_ranks;
  return std::ranges::any_of(ranks, [&](int rank) { return std::ranges::find(named, rank) != named.end(); });
}

std::vector<schedule::Op> computations_of(const std::vector<schedule::Op>& ops) {
  std::vector<schedule::Op> computations;
  std::ranges::copy_if(ops, std::back_inserter(computations),
                       [](const schedule::Op& op) { return schedule::is_computation(op.kind); });
  return computations;
}

// What is waited for in an operation of a program.
std::optional<TimerId> timer_of(schedule::Kind kind) {
  switch (kind) {
    case schedule::Kind::WaitRecvActivation:
      return TimerId::ForwardRecv;
    case schedule::Kind::WaitSendActivation:
      return TimerId::ForwardSend;
    case schedule::Kind::WaitRecvGradient:
      return TimerId::BackwardRecv;
    case schedule::Kind::WaitSendGradient:
      return TimerId::BackwardSend;
    default:
      return std::nullopt;
  }
}

// Of figures, which are fields of metrics.jsonl beside its own.
void check_figure_names(const std::vector<std::string>& figures) {
  for (auto name = figures.begin(); name != figures.end(); ++name) {
    std::string got;
    if (name->empty())
      got = "an empty name";
    else if (is_metrics_field(*name))
      got = concat("\"", printable(*name), "\", which metrics.jsonl has already");
    else if (std::find(figures.begin(), name, *name) != name)
      got = concat("\"", printable(*name), "\" twice");
    if (!got.empty())
      throw ConfigError(rule_got_fix("Each of ForwardStep::figures must have a field of metrics.jsonl to itself.", got,
                                     "another name, as \"my_loss/kept\""));
  }
}

}  // namespace

void check_forward_step(const ForwardStep& step, const plan::ResolvedRun& run) {
  check_figure_names(step.figures);
  if (step.loss && run.shape.mtp_depths > 0)
    throw ConfigError(rule_got_fix("a loss of one's own excludes model.mtp_num_layers: it predicts by no depth.",
                                   concat("mtp_num_layers ", run.shape.mtp_depths), "--mtp-num-layers 0"));
}

void add_number(at::Tensor& sum, const at::Tensor& more) {
  if (!more.defined()) return;
  const at::Tensor wide = more.to(at::kDouble);
  sum = sum.defined() ? sum + wide : wide;
}

Pipeline::Pipeline(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
                   const parallel::ParameterStore& parameters, const std::vector<model::TransformerStage>& stages,
                   optim::GradientReducer* reducer, const optim::ParameterGatherer& gatherer, Timers& timers)
    : run_(run),
      context_(context),
      parameters_(parameters),
      stages_(stages),
      reducer_(reducer),
      gatherer_(gatherer),
      timers_(timers),
      measures_(!run.config.log.trace.empty() && context.tensor().rank() == 0 && context.gradients().rank() == 0),
      is_profiled_(is_profiled_pipeline(run, context)),
      link_(make_link(run, context, parameters)),
      expert_layers_(run.shape.expert_layers()) {}

void Pipeline::use(ForwardStep step) {
  check_forward_step(step, run_);
  forward_step_ = std::move(step);
}

std::vector<double> Pipeline::take_router_counts() const {
  if (expert_layers_.empty()) return {};
  ExpertFigures figures(expert_layers_.size(), static_cast<std::size_t>(run_.shape.experts->count));
  for (const model::TransformerStage& stage : stages_)
    for (const model::LayerRouterCounts& of : stage.take_router_counts()) {
      const auto at = std::ranges::find(expert_layers_, of.layer) - expert_layers_.begin();
      figures.add(static_cast<std::size_t>(at), of.counts);
    }
  return figures.numbers();
}

PassResult Pipeline::execute(const schedule::Program& program, bool training, const MicrobatchSource& microbatch,
                             const LossScale& scale, std::vector<at::Tensor> prepared) {
  const int rank = context_.pipeline().rank();
  Microbatches batches(microbatch, static_cast<std::size_t>(program.num_microbatches), stages_.size(),
                       {context_.sequence().size(), context_.sequence().rank()}, training ? run_.shape.mtp_depths : 0,
                       parameters_.dtype() == at::kDouble ? at::kDouble : at::kFloat);
  std::vector<PipelineStage> stages;
  std::vector<pipeline::Stage*> pointers;
  stages.reserve(stages_.size());
  for (std::size_t k = 0; k < stages_.size(); ++k) {
    const auto stage = static_cast<std::size_t>(run_.placement.stages_of(rank)[k]);
    pointers.push_back(
        &stages.emplace_back(stages_[k], run_, run_.parts[stage], batches, training, scale, forward_step_, prepared));
  }
  pipeline::Hooks hooks{.weight_gradients = &parameters_.gradient_queue(),
                        .reduce_gradients = [this](int stage) { reducer_->start_stage(stage); },
                        .device = context_.device()};
  const bool records = training && (measures_ || profiling_),
             times = training && timers_.measures(TimerId::ForwardRecv);
  if (records) {
    measured_ = &program;
    recorder_.begin(context_.pipeline());
  }
  if (records || times)
    hooks.observe = [&](const schedule::Op& op, pipeline::Clock::time_point start, pipeline::Clock::time_point end) {
      if (records) recorder_(op, start, end);
      const auto timer = timer_of(op.kind);
      if (times && timer) timers_.add(*timer, std::chrono::duration<double>(end - start).count());
    };
  const std::vector<schedule::Op> computations = computations_of(program.ranks[static_cast<std::size_t>(rank)]);
  auto computation = computations.begin();
  hooks.begins = [&](const schedule::Op& op) {
    if (activity_ != nullptr) activity_->begin_operation(schedule::to_string(op));
    if (!schedule::is_computation(op.kind)) return;
    ++computation;
    gatherer_.begin(op, computation == computations.end() ? nullptr : &*computation);
  };
  PassResult result{pipeline::run(program, rank, pointers, link_, hooks)};
  gatherer_.end();
  const c10::NoGradGuard no_grad;
  for (PipelineStage& stage : stages) stage.add_to(result);
  for (const at::Tensor& sum : result.loss_sums) add_number(result.loss_sum, sum);
  return result;
}

schedule::Program Pipeline::own_part(schedule::Program program) const {
  const auto own = static_cast<std::size_t>(context_.pipeline().rank());
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank)
    if (rank != own) std::vector<schedule::Op>().swap(program.ranks[rank]);
  return program;
}

PassResult Pipeline::train(int num_microbatches, const MicrobatchSource& microbatch, const LossScale& scale) {
  auto found = training_.find(num_microbatches);
  if (found == training_.end())
    found = training_.emplace(num_microbatches, own_part(plan::pipeline_program(run_, num_microbatches))).first;
  std::vector<at::Tensor> prepared;
  if (forward_step_.prepare) prepared = forward_step_.prepare(num_microbatches, microbatch);
  return execute(found->second, /*training=*/true, microbatch, scale, std::move(prepared));
}

PassResult Pipeline::evaluate(int num_microbatches, const MicrobatchSource& microbatch) {
  auto found = evaluation_.find(num_microbatches);
  if (found == evaluation_.end())
    found = evaluation_.emplace(num_microbatches, own_part(plan::evaluation_program(run_, num_microbatches))).first;
  return execute(found->second, /*training=*/false, microbatch, {});
}

std::optional<schedule::Timeline> Pipeline::timeline() const {
  if (!measured_) return std::nullopt;
  return recorder_.gather(*measured_, plan::stage_costs(run_.config, run_.shape, run_.parts), context_.pipeline());
}

std::string write_timeline(const schedule::Timeline& measured, const plan::ResolvedRun& run, std::int64_t iteration,
                           const std::filesystem::path& path) {
  const auto costs = schedule::measured_costs(measured, plan::stage_costs(run.config, run.shape, run.parts));
  const auto simulated = schedule::simulate(plan::pipeline_program(run, measured.num_microbatches), costs);
  write_file(path, schedule::chrome_trace(measured));
  std::filesystem::path picture = path;
  picture.replace_extension(".svg");
  const std::string title = concat(plan::schedule_text(run), ", ", measured.placement.num_ranks(), " ranks, ",
                                   measured.placement.num_stages(), " stages, ", measured.num_microbatches,
                                   " microbatches, iteration ", iteration, ": simulated, and measured");
  write_file(picture, schedule::draw_svg(simulated, title, &measured));
  return concat("timeline in ", path.string(), " and ", picture.string(), ": ", 1e3 * measured.makespan,
                " ms, simulated with the same operations ", 1e3 * simulated.makespan, " ms; bubble ",
                100 * measured.bubble, " % and ", 100 * simulated.bubble, " %");
}

}  // namespace megatron::train
