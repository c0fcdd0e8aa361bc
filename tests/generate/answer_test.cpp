#include "megatron/generate/answer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/hugging_face/hugging_face.h"
#include "megatron/model/options.h"
#include "megatron/plan/rules.h"
#include "tests/model/small_model.h"
#include "tests/testing/folders.h"

namespace megatron::generate {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int64_t>;

/// `tp` ranks, or one for each of `stages` layers.
struct Layout {
  int tp = 1;
  std::vector<std::int64_t> stages = {4};  ///< the encoder has the first two layers
};
const std::vector<Layout> kLayouts = {
    {}, {.tp = 2}, {.stages = {2, 2}}, {.stages = {1, 3}}, {.stages = {3, 1}}, {.stages = {1, 1, 1, 1}}};

/// Fills a rank's parameters.
using Fill = std::function<void(const parallel::ParameterStore& store)>;

/// Runs `body` on the ranks of a layout.
void on_ranks(const Layout& layout, const model::TransformerOptions& options, const testing::Tensors& weights,
              at::ScalarType type, const Fill& fill, const std::function<void(const StagedT5&)>& body) {
  const auto parts = plan::parts_of_layers(layout.stages);
  const auto pipeline = static_cast<int>(parts.size());
  comm::run_ranks(layout.tp * pipeline, [&](const comm::Group& world) {
    const auto tp = pipeline == 1 ? world : comm::Group(), pp = pipeline == 1 ? comm::Group() : world;
    const auto part = parts[static_cast<std::size_t>(pp.rank())];
    const auto store = testing::make_store(options.shape, layout.tp, tp.rank(), weights, type, 1234, at::kCPU, {part});
    if (fill) fill(store);
    body(StagedT5(model::CachedT5(options, part, store, tp), parts, pp, at::TensorOptions(type)));
  });
}

at::Tensor row(const Ids& ids) { return at::tensor(ids, at::kLong); }

TEST(StagedT5, WritesTokenByTokenWhatTheWholeModelSays) {
  for (const auto& [name, options] : testing::variants(4)) {
    if (!options.shape.encoder_decoder()) continue;
    SCOPED_TRACE(name);
    const auto weights = testing::random_weights(options.shape, 9);
    auto generator = at::detail::createCPUGenerator(5);
    model::Batch batch;
    batch.tokens_bs = at::randint(0, 10, {3, 6}, generator, at::kLong);
    batch.decoder_tokens_bs = at::randint(0, 10, {3, 35}, generator, at::kLong);
    batch.key_lengths_b = at::arange(4, 7, at::kInt);
    const auto store = testing::make_store(options.shape, 1, 0, weights);
    const model::TransformerStage gpt(options, store, {});
    const auto whole = gpt.logits(batch);
    // Of the first and the last text two answers each continue, with other tokens than the texts' own.
    model::Batch doubled;
    const auto from = row({0, 0, 2, 2});
    doubled.tokens_bs = batch.tokens_bs.index_select(0, from);
    doubled.key_lengths_b = batch.key_lengths_b.index_select(0, from);
    doubled.decoder_tokens_bs =
        at::cat({batch.decoder_tokens_bs.index_select(0, from), at::randint(0, 10, {4, 2}, generator, at::kLong)}, 1);
    const auto further = gpt.logits(doubled);
    for (const Layout& layout : kLayouts) {
      on_ranks(layout, options, weights, at::kDouble, {}, [&](const StagedT5& t5) {
        auto cache = t5.read(batch.tokens_bs, batch.key_lengths_b);
        for (std::int64_t i = 0; i < 35; ++i) {
          const auto got = t5.write(batch.decoder_tokens_bs.select(1, i).contiguous(), cache);
          ASSERT_LE(testing::relative_error(got, whole.select(1, i)), 1e-12) << "token " << i;
        }
        cache.keep(from, row({0, 2}));
        for (std::int64_t i = 35; i < 37; ++i) {
          const auto got = t5.write(doubled.decoder_tokens_bs.select(1, i).contiguous(), cache);
          EXPECT_NEAR_TENSOR(got, further.select(1, i), 1e-12);
        }
      });
    }
  }
}

struct Search {
  BeamOptions options;
  std::vector<Ids> first, second;  ///< the best answers to each of two texts
  std::vector<double> scores = {};
};

constexpr auto kLikely = EarlyStopping::Likely, kFull = EarlyStopping::WhenFull, kNever = EarlyStopping::Never;

Ids times(std::int64_t token, std::size_t count) { return Ids(count, token); }
Ids join(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// What transformers 5.23 generates with num_beams, max_new_tokens, length_penalty, early_stopping (false, true,
/// "never"), eos_token_id, up to the first end.
std::vector<Search> searches() {
  const Ids high = join({times(133, 4), times(84, 8)}), high2 = join({times(133, 4), times(84, 7), {133}});
  return {
      {{.num_beams = 1, .max_new_tokens = 8, .ends = {1}}, {join({{91}, times(89, 7)})}, {times(120, 8)}},
      {{.num_beams = 1, .max_new_tokens = 8, .ends = {5, 89}}, {{91, 89}}, {times(120, 8)}},
      {{.num_beams = 2, .max_new_tokens = 10, .ends = {89}},
       {{91, 89}, {100, 100, 100, 100, 100, 89}},
       {join({{133}, times(120, 9)}), join({{133}, times(120, 8), {84}})},
       {-4.80553, -4.80938, -4.77712, -4.77863}},
      {{.num_beams = 2, .max_new_tokens = 10, .early_stopping = kFull, .ends = {89}},
       {{91, 89}, {100, 100, 89}},
       {join({{133}, times(120, 9)}), join({{133}, times(120, 8), {84}})},
       {-4.80553, -4.81777, -4.77712, -4.77863}},
      {{.num_beams = 4, .max_new_tokens = 12, .ends = {89, 91}},
       {join({{51}, times(100, 7), {56, 89}}), join({{51}, times(100, 6), {56, 89}})},
       {high, high2},
       {-4.78875, -4.79089, -4.7244, -4.73764}},
      {{.num_beams = 4, .max_new_tokens = 12, .length_penalty = 2, .ends = {89, 91, 17}},
       {join({{51}, times(100, 11)}), join({{51}, times(100, 7), {56, 48, 101, 52}})},
       {high, high2},
       {-0.3997, -0.39979, -0.3937, -0.3948}},
      {{.num_beams = 3, .max_new_tokens = 12, .length_penalty = -1, .ends = {89, 48}},
       {{91, 89}, {100, 100, 89}},
       {join({{133}, times(120, 7), times(26, 4)}), join({{133}, times(120, 7), times(26, 3), {140}})},
       {-19.22214, -43.35996, -688.09125, -688.18835}},
      {{.num_beams = 2, .max_new_tokens = 24, .early_stopping = kLikely, .ends = {120, 101}},
       {join({{91}, times(89, 23)}), join({{91}, times(89, 6), times(130, 17)})},
       {{120}, {56, 120}},
       {-4.72083, -4.72173, -4.74697, -4.79059}},
      {{.num_beams = 2, .max_new_tokens = 24, .early_stopping = kNever, .ends = {120, 101}},
       {join({{91}, times(89, 23)}), join({{91}, times(89, 6), times(130, 17)})},
       {join({{133}, times(84, 23)}), join({{133}, times(84, 22), {6}})},
       {-4.72083, -4.72173, -4.70021, -4.70671}},
  };
}

void expect_found(const std::vector<std::vector<Beam>>& found, const Search& wanted) {
  const std::vector<std::vector<Ids>> texts = {wanted.first, wanted.second};
  std::size_t score = 0;
  ASSERT_EQ(found.size(), texts.size());
  for (std::size_t t = 0; t < texts.size(); ++t) {
    ASSERT_GE(found[t].size(), texts[t].size());
    for (std::size_t i = 0; i < texts[t].size(); ++i) {
      EXPECT_EQ(found[t][i].tokens, texts[t][i]) << "text " << t << ", answer " << i;
      if (wanted.scores.empty()) continue;
      EXPECT_NEAR(found[t][i].score, wanted.scores.at(score++), 1e-5 * std::abs(found[t][i].score) + 2e-5);
    }
  }
}

TEST(Answers, AreThoseOfTransformersInEveryLayoutAlsoOneByOne) {
  const fs::path folder = fs::path(unpacked_folder()) / "golden/models/tiny_t5";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
  config::RunConfig config;
  config.model = interchange::read_config(folder).model;
  const plan::ResolvedRun run = plan::resolve(config);
  const auto tensors = testing::read_safetensors(folder / "expected.safetensors");
  const auto tokens = tensors.at("input.input_ids").contiguous();
  const std::int64_t* ids = tokens.const_data_ptr<std::int64_t>();
  const std::vector<Ids> texts = {Ids(ids, ids + 20), Ids(ids + 20, ids + 35)};  // the second is five tokens shorter
  const auto fill = [&](const parallel::ParameterStore& store) {
    checkpoint::load_weights(*interchange::open_hugging_face(folder), store, run.shape);
  };
  for (const Layout& layout : kLayouts) {
    on_ranks(layout, model::transformer_options(run.config, run.shape), {}, at::kFloat, fill, [&](const StagedT5& t5) {
      for (const Search& wanted : searches())
        expect_found(answers(t5, texts, {.beams = wanted.options, .start = 0}), wanted);
      const Search wanted = searches()[4];
      expect_found(answers(t5, texts, {.beams = wanted.options, .start = 0, .group_bytes = 1}), wanted);
    });
  }
}

/// A text of the whole model drawn token by token, each from the logits of all before it.
Ids drawn(const model::TransformerStage& gpt, const Ids& text, const AnswerOptions& options, std::int64_t copy) {
  const Draws draws(options.seed, text, copy);
  Ids tokens = {options.start};
  while (std::ssize(tokens) <= options.beams.max_new_tokens) {
    model::Batch batch;
    batch.tokens_bs = row(text).unsqueeze(0);
    batch.decoder_tokens_bs = row(tokens).unsqueeze(0);
    const auto logits = gpt.logits(batch)[0][std::ssize(tokens) - 1].contiguous();
    const std::span<const double> values(logits.const_data_ptr<double>(), static_cast<std::size_t>(logits.numel()));
    const auto position = std::ssize(text) + std::ssize(tokens) - 1;
    tokens.push_back(sample(values, options.sampling, draws.at(position)));
    if (std::ranges::count(options.beams.ends, tokens.back()) > 0) break;
  }
  return {tokens.begin() + 1, tokens.end()};
}

TEST(Answers, ThatAreDrawnAreThoseOfTheWholeModelInEveryLayout) {
  const std::vector<Ids> texts = {{1, 2, 3, 4, 5, 6}, {7, 8, 9}, {1, 2, 3, 4, 5, 6}};  // two alike, drawn apart
  const AnswerOptions options{.beams = {.max_new_tokens = 9, .ends = {3}},
                              .sampling = {.temperature = 0.8, .top_k = 8, .top_p = 0.95},
                              .seed = 7,
                              .start = 2};
  for (const auto& [name, model_options] : testing::variants(4)) {
    if (!model_options.shape.encoder_decoder()) continue;
    SCOPED_TRACE(name);
    const auto weights = testing::random_weights(model_options.shape, 9);
    const auto store = testing::make_store(model_options.shape, 1, 0, weights);
    const model::TransformerStage gpt(model_options, store, {});
    const std::vector<Ids> expected = {drawn(gpt, texts[0], options, 0), drawn(gpt, texts[1], options, 0),
                                       drawn(gpt, texts[2], options, 1)};
    EXPECT_NE(expected[0], expected[2]);
    for (const Layout& layout : kLayouts) {
      on_ranks(layout, model_options, weights, at::kDouble, {}, [&](const StagedT5& t5) {
        AnswerOptions of_rank = options;
        for (const std::int64_t bytes : {std::int64_t{1} << 30, std::int64_t{1}}) {  // together, one by one
          of_rank.group_bytes = bytes;
          std::vector<Ids> heard(texts.size());
          const auto found = answers(t5, texts, of_rank,
                                     [&](std::size_t text, std::int64_t token) { heard.at(text).push_back(token); });
          EXPECT_EQ(heard, expected);
          for (std::size_t t = 0; t < texts.size(); ++t) EXPECT_EQ(found.at(t).at(0).tokens, expected[t]) << t;
        }
      });
    }
  }
}

TEST(BeamSearch, ScoresWhatWasDrawn) {
  const BeamOptions options{.max_new_tokens = 3, .length_penalty = 2, .ends = {5}};
  BeamSearch search(options);
  for (const std::int64_t token : {4, 1, 4}) search.take(token, -0.5 * static_cast<double>(token));
  EXPECT_TRUE(search.going_on().empty());
  EXPECT_EQ(search.ended().at(0).tokens, (Ids{4, 1, 4}));
  EXPECT_DOUBLE_EQ(search.ended().at(0).score, -4.5 / 9);
  BeamSearch shorter(options);
  shorter.take(5, -3);
  EXPECT_TRUE(shorter.going_on().empty());
  EXPECT_EQ(shorter.last_token(), 5);
}

TEST(Answers, RefuseWhatDoesNotFitBeforeAModelIsLoaded) {
  const auto message_of = [](const std::vector<Ids>& texts, const BeamOptions& options,
                             const SamplingOptions& sampling = {.temperature = 0}) -> std::string {
    try {
      check(texts, 20, AnswerOptions{.beams = options, .sampling = sampling});
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(message_of({{1}}, {.num_beams = 10}), "");
  EXPECT_THAT(message_of({{1}, {}}, {}), HasSubstr("0 in prompt 1"));
  EXPECT_THAT(message_of({{1}}, {.num_beams = 0, .max_new_tokens = 0}),
              ::testing::AllOf(HasSubstr("num-beams"), HasSubstr("max-new-tokens")));
  EXPECT_THAT(message_of({{1}}, {.length_penalty = std::nan("")}), HasSubstr("length-penalty"));
  EXPECT_THAT(message_of({{1}}, {.num_beams = 11}), HasSubstr("20 tokens, and 22 continuations"));
  EXPECT_THAT(message_of({{1}}, {.num_beams = 2}, {.temperature = 1}), HasSubstr("num-beams 2, temperature 1"));
  EXPECT_THAT(message_of({{1}}, {}, {.temperature = 1, .top_p = 0}), HasSubstr("top-p"));
  EXPECT_THAT(message_of({{1}}, {.num_beams = 7, .ends = {1, 2}}), HasSubstr("20 tokens, and 21 continuations"));
}

TEST(BeamSearch, RefusesLogarithmsThatAreNotFinite) {
  const BeamOptions options;
  BeamSearch search(options);
  const std::vector<float> bad(4, std::nanf(""));
  EXPECT_THROW(search.step(bad), std::runtime_error);
}

TEST(BeamSearch, TakesTheEarlierBeamAndTheLowerTokenOfEquals) {
  const BeamOptions options{.num_beams = 2, .max_new_tokens = 3};
  BeamSearch search(options);
  for (std::size_t beams = 1; !search.going_on().empty(); beams = 2) {
    const std::vector<float> equal(5 * beams, -1.0f);
    search.step(equal);
  }
  ASSERT_EQ(search.ended().size(), 2u);
  EXPECT_EQ(search.ended()[0].tokens, (Ids{0, 0, 0}));
  EXPECT_EQ(search.ended()[1].tokens, (Ids{0, 0, 1}));
  EXPECT_EQ(search.ended()[0].score, -1);
}

}  // namespace
}  // namespace megatron::generate
