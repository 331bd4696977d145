// Bad inputs: snug quant, its flags and its files.
#include <cmath>
#include <cstring>

#include "tests/tools/e2e/bad_input.h"

namespace snug::e2e {
namespace {

const char* const kAgain = "code the weights again with snug quant";
const char* const kCodecs =
    "dynamic8, dynamic8_unsigned, nf4, fp4, dynamic4, linear4_unsigned, int8, min_max8, fp8_e4m3, "
    "fp8_e5m2, quantile8";

struct Piece {
  std::string name, dtype, shape, bytes;
};

Make tensors(const std::string& name, const std::vector<Piece>& pieces) {
  std::string header = "{", bytes;
  for (const Piece& p : pieces) {
    header += (header.size() > 1 ? ",\"" : "\"") + p.name + "\":{\"dtype\":\"" + p.dtype +
              "\",\"shape\":" + p.shape + ",\"data_offsets\":[" + std::to_string(bytes.size()) +
              "," + std::to_string(bytes.size() + p.bytes.size()) + "]}";
    bytes += p.bytes;
  }
  header += "}";
  return file(name, little(header.size(), 8) + header + bytes);
}

std::string floats(const std::vector<float>& x) {
  std::string out(x.size() * sizeof(float), '\0');
  std::memcpy(out.data(), x.data(), out.size());
  return out;
}

const Make kWeights = tensors("w.safetensors", {{"x", "F32", "[4]", floats({1, 2, 3, 4})}});

// A file of codes of int8, whose state is `state`; `absmax` as a piece.
Make codes(const std::string& state,
           const Piece& absmax = {"x.absmax", "F32", "[1]", floats({4})}) {
  return tensors("q.safetensors", {{"x", "U8", "[4]", "abcd"},
                                   absmax,
                                   {"x.quant_state.snug__int8", "U8",
                                    "[" + std::to_string(state.size()) + "]", state}});
}

std::string state(const std::string& type, const std::string& block, const std::string& dtype,
                  const std::string& shape, const std::string& more = "") {
  return R"({"quant_type":")" + type + R"(","blocksize":)" + block + R"(,"dtype":")" + dtype +
         R"(","shape":)" + shape + more + "}";
}

BadRow decode(const char* name, const std::string& expected, const std::string& found,
              const Make& made) {
  return {name,
          {"quant", "@q.safetensors", "--decode", "--output", "@new.safetensors"},
          data(expected, found, kAgain),
          {made}};
}

}  // namespace

std::vector<BadRow> bad_quant() {
  const std::string in_state = " in the state of x in @q.safetensors";
  return {
      follows(
          {"no file",
           {"quant", "--codec", "nf4"},
           usage("FILE for snug quant", "none", "snug quant run1/final --codec nf4 --double")},
          {"quant", "@w.safetensors", "--codec", "nf4", "--double", "--output", "@new.safetensors"},
          {kWeights}),
      follows({"two files",
               {"quant", "@a", "@b", "--codec", "nf4"},
               usage("one FILE for snug quant", "2", "one command a file")},
              {"quant", "@w.safetensors", "--codec", "nf4", "--output", "@new.safetensors"},
              {kWeights}),
      {"no codec",
       {"quant", "@w.safetensors"},
       usage(std::string("--codec for snug quant: ") + kCodecs, "none", "--codec nf4"),
       {kWeights}},
      {"unknown codec",
       {"quant", "@w.safetensors", "--codec", "nf5"},
       usage(std::string("a codec: ") + kCodecs, "nf5", "did you mean nf4?"),
       {kWeights}},
      follows({"a block that is not there",
               {"quant", "@w.safetensors", "--codec", "nf4", "--block", "48"},
               usage("a block of nf4 of 32, 64, 128 ... or 4096 elements", "a block of 48 elements",
                     "take 64, the usual one of nf4"),
               {kWeights}},
              {"quant", "@w.safetensors", "--codec", "nf4", "--block", "64"}),
      {"a block of nothing",
       {"quant", "@w.safetensors", "--codec", "int8", "--block", "0"},
       usage("--block of one element or more", "0", "--block 64"),
       {kWeights}},
      follows({"two scales doubled",
               {"quant", "@w.safetensors", "--codec", "min_max8", "--double"},
               usage("doubled scales of a codec that keeps one scale a block",
                     "min_max8, which keeps 2", "leave its scales in f32, or choose another codec"),
               {kWeights}},
              {"quant", "@w.safetensors", "--codec", "min_max8"}),
      follows({"decode with a codec",
               {"quant", "@w.safetensors", "--decode", "--codec", "nf4"},
               usage("--decode without --codec: the file says how it is coded", "both",
                     "leave --codec out"),
               {kWeights}},
              {"quant", "@w.safetensors", "--decode"}, {}, "expected a file of codes"),
      follows({"output over the input",
               {"quant", "@w.safetensors", "--codec", "nf4", "--output", "@w.safetensors",
                "--overwrite"},
               usage("--output as another file than what is read", "@w.safetensors, which is both",
                     "another name"),
               {kWeights}},
              {"quant", "@w.safetensors", "--codec", "nf4", "--output", "@new.safetensors"}),
      follows({"a picture over the input",
               {"quant", "@w.safetensors", "--codec", "nf4", "--picture", "@w.safetensors",
                "--overwrite"},
               usage("--picture as another file than what is read", "@w.safetensors, which is both",
                     "another name"),
               {kWeights}},
              {"quant", "@w.safetensors", "--codec", "nf4", "--picture", "@new.html"}),
      follows(
          {"a match that is no expression",
           {"quant", "@w.safetensors", "--codec", "nf4", "--match", "("},
           usage("a regular expression over names of tensors as --match",
                 "( (--match: \"(\": missing closing parenthesis at byte 1)", "--match 'weight$'"),
           {kWeights}},
          {"quant", "@w.safetensors", "--codec", "nf4", "--match", "."}),
      follows({"a match of none",
               {"quant", "@w.safetensors", "--codec", "nf4", "--match", "bias$"},
               usage("a --match that is found in the name of a tensor",
                     "\"bias$\", in none of 1 of @w.safetensors",
                     "snug inspect shows the names; --match 'weight$'"),
               {kWeights}},
              {"quant", "@w.safetensors", "--codec", "nf4", "--match", "x$"}),
      follows(
          {"no floats",
           {"quant", "@w.safetensors", "--codec", "nf4"},
           data("a file with tensors of F32, BF16 or F16 to code",
                "@w.safetensors, 1 tensors without one", "snug inspect shows what a file holds"),
           {tensors("w.safetensors", {{"x", "U8", "[4]", "abcd"}})}},
          {"inspect", "@w.safetensors"}),
      follows({"not finite",
               {"quant", "@w.safetensors", "--codec", "nf4", "--output", "@new.safetensors"},
               data("finite numbers: one that is not would take its whole block with it",
                    "@w.safetensors: 2 of 4 in x, the first at element 1",
                    "--match for other tensors alone, or a file from before they were there"),
               {tensors("w.safetensors", {{"x", "F32", "[4]", floats({1, NAN, 3, INFINITY})}})}},
              {"quant", "@w.safetensors", "--codec", "nf4"}, {kWeights}),
      {"a foreign file",
       {"quant", "@w.safetensors", "--codec", "nf4"},
       data("a JSON header in UTF-8 in @w.safetensors",
            "an error at byte 10 of the file: parse error at line 1, column 3: syntax error while "
            "parsing object key - invalid literal; last read: '{no'; expected string literal",
            "write the file again with a correct writer, or download it again"),
       {file("w.safetensors", little(4, 8) + "{no}")}},
      {"a file that is cut",
       {"quant", "@w.safetensors", "--codec", "nf4"},
       data("@w.safetensors to hold tensor 'x', up to byte 16 of its data", "13 bytes of data",
            "copy or download the file again; it is damaged or was not written completely"),
       {kWeights, cut("w.safetensors", 3)}},
      follows({"codes once more",
               {"quant", "@q.safetensors", "--codec", "nf4"},
               data("a file of weights that are not codes yet",
                    "@q.safetensors, which holds x.quant_state.snug__int8",
                    "snug quant --decode makes weights of it"),
               {codes(state("int8", "256", "float32", "[4]"))}},
              {"quant", "@w.safetensors", "--codec", "nf4"}, {kWeights}),
      follows(
          {"decode: weights",
           {"quant", "@w.safetensors", "--decode"},
           data(
               "a file of codes, with a tensor X.quant_state.* for each",
               "@w.safetensors, without one",
               "snug quant --codec nf4 --output FILE makes one; without --decode it codes weights"),
           {kWeights}},
          {"quant", "@w.safetensors", "--codec", "nf4", "--output", "@new.safetensors"}),
      decode("decode: no scales", "a tensor x.absmax beside its codes in @q.safetensors", "none",
             codes(state("int8", "256", "float32", "[4]"), {"y", "F32", "[1]", floats({1})})),
      decode("decode: too few scales", "2 elements of F32 as x.absmax in @q.safetensors",
             "1 of F32", codes(state("int8", "2", "float32", "[4]"))),
      decode("decode: scales of another type", "1 elements of F32 as x.absmax in @q.safetensors",
             "1 of F16",
             codes(state("int8", "256", "float32", "[4]"), {"x.absmax", "F16", "[1]", "ab"})),
      decode("decode: another shape", "5 elements of U8 as x in @q.safetensors", "4 of U8",
             codes(state("int8", "256", "float32", "[5]"))),
      decode("decode: no shape", "a list \"shape\" of extents above 0" + in_state,
             "a list of 1 values", codes(state("int8", "256", "float32", "[0]"))),
      decode("decode: dtype", "a \"dtype\" of float32, bfloat16 or float16" + in_state, "\"int8\"",
             codes(state("int8", "256", "int8", "[4]"))),
      decode("decode: codec", std::string("a codec: ") + kCodecs + in_state, "int3",
             codes(state("int3", "256", "float32", "[4]"))),
      decode("decode: block", "a block of int8 of one element or more" + in_state,
             "a block of -1 elements", codes(state("int8", "-1", "float32", "[4]"))),
      decode("decode: no bytes", "JSON as bytes of U8" + in_state,
             "x.quant_state.snug__int8 of F32",
             tensors("q.safetensors", {{"x.quant_state.snug__int8", "F32", "[1]", floats({1})}})),
      decode("decode: another book",
             "the codec's own book in x.quant_map of @q.safetensors: -1 for "
             "code 0",
             "7",
             tensors("q.safetensors",
                     {{"x", "U8", "[2,1]", "ab"},
                      {"x.absmax", "F32", "[1]", floats({4})},
                      {"x.quant_map", "F32", "[16]", floats(std::vector<float>(16, 7))},
                      {"x.quant_state.bitsandbytes__nf4", "U8",
                       "[" + std::to_string(state("nf4", "64", "float32", "[4]").size()) + "]",
                       state("nf4", "64", "float32", "[4]")}})),
      decode("decode: other blocks of scales", "a \"nested_blocksize\" of 256" + in_state, "128",
             [] {
               static const std::string text =
                   state("int8", "256", "float32", "[4]",
                         R"(,"nested_blocksize":128,"nested_offset":0.5)");
               std::string book;
               return tensors("q.safetensors", {{"x", "U8", "[4]", "abcd"},
                                                {"x.absmax", "U8", "[1]", "a"},
                                                {"x.nested_absmax", "F32", "[1]", floats({4})},
                                                {"x.quant_state.snug__int8", "U8",
                                                 "[" + std::to_string(text.size()) + "]", text}});
             }()),
  };
}

}  // namespace snug::e2e
