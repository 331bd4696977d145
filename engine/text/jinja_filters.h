// The filters that are more than a line; jinja_filter_table.cpp has the names of all.
#pragma once

#include <string_view>
#include <vector>

#include "engine/text/jinja_eval.h"

namespace snug::jinja {

struct Filters {
  Evaluator& e;

  // By an attribute's path ("function.name", 0), as jinja2's make_attrgetter; none: the value.
  Value by_path(const Value& of, const Value& path);
  Value lazy(const std::vector<Value>& values, const char* name);
  Value list(const std::vector<Value>& values);
  Value folded(const Value& v, bool case_sensitive);
  Value select(std::string_view name, const Value& of, Arguments& a);
  Value map(const Value& of, Arguments& a);
  Value join(const Value& of, Arguments& a);
  void sort(std::vector<Value>& values, const Value& path, bool case_sensitive, bool reverse);
  Value dictsort(const Value& of, Arguments& a);
  // The keys, values or pairs of a mapping.
  std::vector<Value> views(const Dict& dict, Sequence::Form form);
  Value indent(const Value& of, Arguments& a);
  Value to_int(const Value& of, Arguments& a);
  Value to_float(const Value& of, Arguments& a);
  Value round(const Value& of, Arguments& a);
  Value to_json(const Value& of, Arguments& a);
  Value truncate(const Value& of, Arguments& a);
  Value title(const Value& of);
  Value escape(const Value& of);
  Value extreme(std::string_view name, const Value& of, Arguments& a);
};

}  // namespace snug::jinja
