// What joins the ranks of a described machine. Published rates of one direction; a collective of N ranks is
// predicted as
//
//   bytes that a rank reads from others / (kShare x rate)  +  ceil(log2 N) x latency
//
// which is a ring's bandwidth with a tree's latency, as NCCL comes near to; that links are shared by other
// traffic, or that some ranks are nearer to each other than others, is not in it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct RankLink {
  std::string name;
  double bytes_per_second = 0, latency = 0;  // seconds
  int most = 0;                              // devices that it joins; 0: any number
  static constexpr double kShare = 0.8;
};

const std::vector<RankLink>& known_links();
// By name. Throws usage, listing the names.
const RankLink& find_link(std::string_view name, const std::string& where);

}  // namespace snug
