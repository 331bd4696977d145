// Folders of encoders: names under all spellings, heads that are missing or extra, configs both ways,
// published sizes.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "engine/core/rng.h"
#include "engine/io/json.h"
#include "layers/models/families.h"
#include "layers/models/weights.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

struct Copy {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};

// The model of a fixture, its file's tensors, and a folder to write them to under other names.
class EncoderFiles : public testing::TestWithParam<const char*> {
 protected:
  EncoderFiles() { open(GetParam()); }
  void open(const std::string& name) {
    const std::string path = source_folder() + "/tests/golden/encoder_" + name + ".safetensors";
    const SafetensorsReader file(path);
    config_ = parse_json(file.metadata().at("config"), path);
    spec_ =
        find_family(config_.at("model_type").get<std::string>(), path).parse(config_, path, false);
    model_ = std::make_unique<Model>(spec_, parse_precision("fp32"));
    copies_.clear();
    for (const SafeTensor& t : file.tensors())
      if (t.dtype == SafeDType::F32)
        copies_.push_back({t.name, t.shape, {t.data, t.data + t.bytes}});
    write();
    want_ = load();
  }
  void write() {
    std::vector<SafeSpec> specs;
    for (const Copy& c : copies_) specs.push_back({c.name, SafeDType::F32, c.shape});
    const SafetensorsLayout layout({{"format", "pt"}}, specs);
    SafetensorsWriter writer(folder_ / "model.safetensors", layout);
    for (const Copy& c : copies_)
      writer.write(c.name, c.bytes.data(), static_cast<int64_t>(c.bytes.size()));
    writer.commit();
  }
  std::vector<float> load(uint64_t seed = 0) {
    std::vector<float> values(static_cast<size_t>(model_->params().flat_elements()), 7.0f);
    View view;
    view.data = values.data();
    view.shape = {model_->params().flat_elements()};
    view.dtype = DType::f32;
    view.place = Place::cpu;
    warnings_ = load_weights(*model_, folder_.path(), view, 2, seed);
    return values;
  }
  Copy* find(const std::string& name) {
    for (Copy& c : copies_)
      if (c.name == name) return &c;
    return nullptr;
  }

  TempFolder folder_;
  nlohmann::json config_;
  ModelSpec spec_;
  std::unique_ptr<Model> model_;
  std::vector<Copy> copies_;
  std::vector<float> want_;
  std::vector<std::string> warnings_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

// Which values lie where is the golden gradients' to see; that all of a file is used is seen here.
TEST_P(EncoderFiles, EveryTensorIsReadAndNoneIsLeft) {
  EXPECT_TRUE(warnings_.empty()) << warnings_.front();
  int64_t elements = 0;
  for (const Copy& c : copies_) elements += static_cast<int64_t>(c.bytes.size()) / 4;
  EXPECT_EQ(elements, model_->params().real_elements());
}

TEST_P(EncoderFiles, OldSpellingsAreTheSame) {
  const std::string prefix = config_.at("model_type").get<std::string>() + ".";
  for (Copy& c : copies_) {
    if (c.name.starts_with(prefix)) c.name = c.name.substr(prefix.size());
    c.name = replaced(c.name, "LayerNorm.weight", "LayerNorm.gamma");
    c.name = replaced(c.name, "LayerNorm.bias", "LayerNorm.beta");
  }
  copies_.push_back({"embeddings.position_ids", {1, 2}, std::vector<uint8_t>(8)});
  write();
  EXPECT_EQ(load(), want_);
  EXPECT_TRUE(warnings_.empty());
}

TEST_P(EncoderFiles, TwoSpellingsThatDifferAreRefused) {
  Copy* norm = nullptr;
  for (Copy& c : copies_)
    if (c.name.ends_with("LayerNorm.weight")) norm = &c;
  if (!norm) GTEST_SKIP() << "no LayerNorm of that spelling";
  Copy other = *norm;
  other.name = replaced(other.name, ".weight", ".gamma");
  copies_.push_back(other);
  write();
  EXPECT_EQ(load(), want_);
  copies_.back().bytes[1] ^= 1;
  write();
  test::expect_error(ErrorCode::data, {"which are one parameter, to be equal", "two that differ"},
                     [&] { load(); });
}

TEST_P(EncoderFiles, AHeadThatIsMissingIsDrawnAndAnotherIsLeft) {
  std::vector<std::string> gone;
  for (size_t i = 0; i < copies_.size();) {
    const std::string& name = copies_[i].name;
    const bool base = name.starts_with(config_.at("model_type").get<std::string>() + ".") &&
                      name.find("pooler") == std::string::npos;
    if (base) {
      ++i;
      continue;
    }
    gone.push_back(name);
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  copies_.push_back({"qa_outputs.weight", {2, 2}, std::vector<uint8_t>(16)});
  write();
  const std::vector<std::string> missing = missing_weights(*model_, folder_.path());
  EXPECT_EQ(std::set<std::string>(missing.begin(), missing.end()),
            std::set<std::string>(gone.begin(), gone.end()));
  const std::vector<float> drawn = load(5);
  EXPECT_NE(drawn, want_);
  EXPECT_EQ(drawn, load(5));
  EXPECT_NE(drawn, load(6));
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("qa_outputs.weight is not part of the model"), std::string::npos);
  // As in a new model of that seed.
  std::vector<float> fresh(want_.size());
  for (int i = 0; i < model_->params().size(); ++i) {
    const ParamInfo& p = model_->params()[i];
    if (!p.name.view().starts_with("head.")) continue;
    init_parameter(model_->params(), i, fresh.data() + p.offset, 5);
    EXPECT_EQ(std::memcmp(fresh.data() + p.offset, load(5).data() + p.offset,
                          static_cast<size_t>(p.elements()) * 4),
              0)
        << p.name.view();
  }
}

TEST_P(EncoderFiles, WhatIsMissingOfTheBaseModelIsNamed) {
  std::erase_if(copies_, [](const Copy& c) {
    return c.name.find("layer.0.") != std::string::npos &&
           (c.name.ends_with("key.weight") || c.name.ends_with("k_lin.weight"));
  });
  write();
  test::expect_error(ErrorCode::data, {"layer.0.attention", "none of that name"}, [&] { load(); });
}

TEST_P(EncoderFiles, TheConfigIsWrittenAsItWasRead) {
  const Family& family = find_family(spec_.family, "test");
  const nlohmann::json written = family.write(spec_, "float32");
  const ModelSpec again = family.parse(written, "written", true);
  EXPECT_EQ(family.write(again, "float32"), written);
  for (const auto& [key, value] : written.items()) {
    if (!config_.contains(key) || key == "transformers_version") continue;
    if (key == "classifier_dropout") continue;  // null: as the others
    if (value.is_number_float()) {
      EXPECT_FLOAT_EQ(value.get<float>(), config_[key].get<float>()) << key;
    } else {
      EXPECT_EQ(value, config_[key]) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EncoderFiles,
                         testing::Values("a", "b", "c", "d", "e", "f", "g", "h", "i", "j"),
                         [](const auto& named) { return std::string(named.param); });

// Parameters as `model.num_parameters()` of transformers counts them.
TEST(EncoderShapes, PublishedSizes) {
  const auto count = [](const char* name, HeadKind head) {
    ModelSpec spec = resolve_model(name, "").spec;
    set_head(spec, head, "test");
    return Model(spec, parse_precision("fp32")).params().real_elements();
  };
  EXPECT_EQ(count("bert-large", HeadKind::sequence_classification), 335'143'938);
  EXPECT_EQ(count("bert-base", HeadKind::sequence_classification), 109'483'778);
  EXPECT_EQ(count("bert-base", HeadKind::masked_lm), 109'514'298);
  EXPECT_EQ(count("roberta-base", HeadKind::sequence_classification), 124'647'170);
  EXPECT_EQ(count("roberta-base", HeadKind::masked_lm), 124'697'433);
  EXPECT_EQ(count("distilbert", HeadKind::sequence_classification), 66'955'010);
  EXPECT_EQ(count("distilbert", HeadKind::masked_lm), 66'985'530);
}

// RoBERTa's classifier drops before its dense layer too.
TEST(EncoderConfigs, DropoutsOfTheHeads) {
  const auto slots = [](const char* name) {
    ModelSpec spec = resolve_model(name, "").spec;
    set_head(spec, HeadKind::sequence_classification, "test");
    const Model model(spec, parse_precision("fp32"));
    const Body& body = model.rows_head()->body();
    return std::pair(body.find_slot("drop1") >= 0, body.find_slot("drop2") >= 0);
  };
  EXPECT_EQ(slots("bert-tiny"), std::pair(false, true));
  EXPECT_EQ(slots("distilbert"), std::pair(false, true));
  EXPECT_EQ(slots("roberta-base"), std::pair(true, true));
  // transformers' DistilBertForTokenClassification drops by config.dropout.
  const auto rate = [](HeadKind head) {
    ModelSpec spec =
        resolve_model("", R"({"type": "distilbert", "dropout": 0.3, "seq_classif_dropout": 0.4})")
            .spec;
    set_head(spec, head, "test");
    return spec.head_dropout;
  };
  EXPECT_EQ(rate(HeadKind::token_classification), 0.3f);
  EXPECT_EQ(rate(HeadKind::sequence_classification), 0.4f);
}

TEST(EncoderConfigs, Mistakes) {
  const auto refused = [](const char* map, std::initializer_list<const char*> parts,
                          ErrorCode code) {
    test::expect_error(code, parts, [&] { resolve_model("", map); });
  };
  refused(R"({"type": "bert", "hiden_size": 8})", {"hiden_size", "hidden_size"}, ErrorCode::usage);
  refused(R"({"type": "bert", "is_decoder": true})", {"an encoder", "is_decoder"},
          ErrorCode::unsupported);
  refused(R"({"type": "bert", "position_embedding_type": "relative_key"})",
          {"position_embedding_type: absolute", "relative_key"}, ErrorCode::unsupported);
  refused(R"({"type": "bert", "hidden_act": "swish9"})", {"hidden_act = \"swish9\""},
          ErrorCode::unsupported);
  refused(R"({"type": "bert", "problem_type": "ranking"})",
          {"problem_type in model as regression, single_label_classification or "
           "multi_label_classification",
           "ranking", "leave problem_type out"},
          ErrorCode::usage);
  refused(R"({"type": "bert", "id2label": {"0": "a", "2": "b"}})",
          {"id2label with names of 0 to 1", "number the labels"}, ErrorCode::data);
  refused(R"({"type": "bert", "num_labels": 0})", {"num_labels between 1"}, ErrorCode::usage);
  refused(R"({"type": "bert", "architectures": ["BertForQuestionAnswering"]})",
          {"BertForMaskedLM", "BertForQuestionAnswering"}, ErrorCode::unsupported);
  refused(R"({"type": "distilbert", "gradient_checkpointing": true})",
          {"keys of model that have an effect", "gradient_checkpointing: true",
           "recompute=block beside the model, or recompute=auto"},
          ErrorCode::usage);
  refused(R"({"type": "bert", "attn_implementation": "sdpa"})",
          {"keys of model that have an effect", "attn_implementation: \"sdpa\"",
           "attn_implementation beside the model"},
          ErrorCode::usage);
  ModelSpec gpt = resolve_model("gpt2", "").spec, bert = resolve_model("bert-tiny", "").spec;
  test::expect_error(ErrorCode::unsupported,
                     {"a task that a model of type gpt2 has: causal_lm or sequence_classification",
                      "task: masked_lm (command line)", "task=auto, or model=bert-base"},
                     [&] { set_head(gpt, HeadKind::masked_lm, "command line"); });
  test::expect_error(ErrorCode::unsupported,
                     {"a task that a model of type bert has: masked_lm, sequence_classification or "
                      "token_classification",
                      "task: causal_lm (command line)", "task=masked_lm, or model=gpt2"},
                     [&] { set_head(bert, HeadKind::causal_lm, "command line"); });
}

}  // namespace
}  // namespace snug
