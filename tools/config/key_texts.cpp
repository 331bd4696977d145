#include "tools/config/key_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "layers/models/family.h"
#include "layers/ops/pair_losses.h"
#include "optim/kahan.h"
#include "optim/percentile.h"
#include "optim/settings.h"

namespace snug {
namespace {

// "a, b or c".
std::string one_of_these(const std::vector<std::string>& list) {
  std::string text;
  for (size_t i = 0; i < list.size(); ++i)
    text += (i == 0 ? "" : i + 1 < list.size() ? ", " : " or ") + list[i];
  return text;
}

}  // namespace

std::string_view optimizer_text() {
  static const std::string text = [] {
    std::vector<std::string> ends;
    for (const StateFormFacts& f : state_forms())
      if (f.form != StateForm::f32) ends.emplace_back(f.ends[0]);
    return fmt::format(
        "the optimizer; adamw, ademamix, lion, muon and adam_mini decay weights apart from the "
        "gradient, the others add the decay to it; lion, adagrad and rmsprop keep half of the "
        "states of adamw; adafactor keeps a number a row and a column of a matrix; muon makes "
        "the singular values of a layer's step alike and keeps its momentum, with adamw for "
        "embeddings, head, norms and biases; adam_mini keeps one second moment a head or a row; "
        "lion usually wants a rate three to ten times lower; lamb and lars scale the step of a "
        "tensor by its norm, for large batches. With {} behind a name states rest so "
        "(optim_state); with paged_ before it, they rest with the host where the plan has no "
        "room for them",
        one_of_these(ends));
  }();
  return text;
}
std::string_view state_form_choices() {
  static const std::string text = [] {
    std::string words = "auto";
    for (const StateFormFacts& f : state_forms()) words += std::string(" ") + f.word;
    return words;
  }();
  return text;
}
std::string_view state_forms_text() {
  static const std::string text = [] {
    std::vector<std::string> list = {"auto (as optim says)"};
    for (const StateFormFacts& f : state_forms())
      list.push_back(*f.doc == '\0' ? f.word : fmt::format("{} ({})", f.word, f.doc));
    return "how the optimizer's state rests: " + one_of_these(list);
  }();
  return text;
}
std::string_view optimizer_choices() {
  static const std::string text = fmt::format("{}", fmt::join(optimizer_names(), " "));
  return text;
}
std::string_view optimizer_refusals() {
  static const std::string text = fmt::format("{}", fmt::join(refused_optimizers(), " "));
  return text;
}
std::string_view optimizer_arguments() {
  static const std::string text = [] {
    std::string out = fmt::format(
        "settings of the optimizer's own, by the names of its reference; of all whose states rest "
        "in "
        "bf16, with the permission no_master, {} (0; 1: a compensation in place of rounding at "
        "random); of all whose steps are not made of matrices, {} (100; below: a parameter's "
        "gradient "
        "is scaled down to this percentile of its last hundred norms):",
        kKahanArgument, kPercentileArgument);
    for (const OptimFacts& f : optimizer_facts()) {
      if (f.settings.empty()) continue;
      out += fmt::format("{} {}", out.back() == ':' ? "" : ";", f.name);
      for (const OptimSetting& s : f.settings)
        out += fmt::format("{} {} ({}; {})", &s == &f.settings.front() ? ":" : ",", s.name,
                           s.standard, s.doc);
    }
    return out;
  }();
  return text;
}

std::string_view learning_rate_text() {
  static const std::string text = [] {
    std::string out = "the highest learning rate of the schedule; unless set";
    const char* mark = "";
    for (const OptimFacts& f : optimizer_facts()) {
      if (f.defaults.learning_rate <= 0) continue;
      out += fmt::format("{} {:.1e} of {}", mark, f.defaults.learning_rate, f.name);
      mark = ",";
    }
    return out;
  }();
  return text;
}

std::string_view model_text() {
  static const std::string text = [] {
    std::string out =
        "a folder with config.json and weights, any size as Hugging Face config keys, or a named "
        "shape with random weights:";
    // One of each family: those whose names begin with the same letters are its kin.
    std::set<std::string> stems;
    std::istringstream names(known_names());
    for (std::string name; names >> name;) {
      while (name.ends_with(',')) name.pop_back();
      const auto end = std::find_if(name.begin(), name.end(), [](char c) { return c < 'a'; });
      if (stems.emplace(name.begin(), end).second) out += " " + name + ",";
    }
    return out + " and their kin; a name that is not known is answered with all of them";
  }();
  return text;
}

std::string_view why_no_task(std::string_view task) {
  return task == "orpo"  ? "which is loss_type=orpo of task=dpo here"
         : task == "kto" ? "which is loss_type=kto of task=dpo here"
                         : "which is not built";
}

std::string_view instead_of_task(std::string_view task) {
  return task == "orpo" ? "task=dpo loss_type=orpo" : task == "kto" ? "task=dpo loss_type=kto" : "";
}

std::string_view pair_loss_names() {
  static const std::string text = [] {
    std::string out;
    for (const PairLossFacts& f : kPairLosses)
      out += fmt::format("{}{}", out.empty() ? "" : " ", f.name);
    return out;
  }();
  return text;
}

}  // namespace snug
