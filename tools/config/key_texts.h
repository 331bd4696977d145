// Texts of the table of keys that follow other tables: of optimizers and of losses of pairs. Made once.
#pragma once

#include <string_view>

namespace snug {

std::string_view optimizer_text();       // what optim is, with the ends of names
std::string_view optimizer_choices();    // names, with spaces between
std::string_view optimizer_refusals();   // names that are known and not there
std::string_view optimizer_arguments();  // what optim_args takes
std::string_view state_form_choices();   // of optim_state, as its words and as it says them
std::string_view state_forms_text();
std::string_view learning_rate_text();  // with the rates of optimizers that have one of their own
std::string_view model_text();          // with the name of a shape of each family
std::string_view pair_loss_names();
// Of a task that is refused: why, and what to write instead; empty: nothing is like it.
std::string_view why_no_task(std::string_view task);
std::string_view instead_of_task(std::string_view task);

}  // namespace snug
