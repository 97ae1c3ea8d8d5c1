// The Python face of the native code. Shapes are checked here; the loops live in files of their own.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "search.hpp"

namespace nb = nanobind;
using namespace coil;

namespace coil {
float SCALES[256];
}

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

static void check(bool right, const char *what) {
    if (!right) throw std::invalid_argument(what);
}

static Kind kind_of(const std::string &name) {
    if (name == "int8") return Kind::int8;
    if (name == "fp16") return Kind::fp16;
    check(name == "fp32", "unknown precision");
    return Kind::fp32;
}

static Vectors vectors_of(const Array<std::uint8_t> &data, const std::optional<Array<std::uint8_t>> &scales,
                          std::int64_t count, int dim, Kind kind) {
    check(dim <= MOST_DIM, "vectors are too wide for the kernels");
    check(static_cast<std::int64_t>(data.shape(0)) == count * dim * bytes_of(kind), "vectors have another size");
    check(kind != Kind::int8 || (scales && static_cast<std::int64_t>(scales->shape(0)) == count), "scales have another size");
    return {data.data(), scales ? scales->data() : nullptr, count, dim, kind};
}

// A segment's arrays, which it keeps alive.
class Lists {
  public:
    Lists(Array<std::int32_t> list_ids, Array<std::int64_t> list_offsets, Array<std::uint16_t> mention_rows,
          Array<std::uint8_t> mentions, std::optional<Array<std::uint8_t>> mention_scales, int n_t,
          Array<std::uint8_t> sentences, std::optional<Array<std::uint8_t>> sentence_scales, int n_c,
          Array<std::int64_t> row_documents, Array<float> list_norms, Array<std::int64_t> block_offsets,
          Array<float> block_norms, Array<float> sentence_norms, Array<std::uint8_t> sketches,
          Array<std::uint8_t> sketch_scales, Array<std::uint8_t> row_norms, Array<std::uint8_t> tail_norms,
          Array<float> sketch_axes, float norm_step, const std::string &precision)
        : keep_ids_(list_ids), keep_offsets_(list_offsets), keep_rows_(mention_rows), keep_documents_(row_documents),
          keep_list_norms_(list_norms), keep_block_offsets_(block_offsets), keep_block_norms_(block_norms),
          keep_sentence_norms_(sentence_norms), keep_axes_(sketch_axes),
          keep_{mentions, sentences, sketches, sketch_scales, row_norms, tail_norms} {
        if (mention_scales) keep_.push_back(*mention_scales);
        if (sentence_scales) keep_.push_back(*sentence_scales);
        const std::int64_t lists = static_cast<std::int64_t>(list_ids.shape(0));
        const std::int64_t count = static_cast<std::int64_t>(mention_rows.shape(0));
        const std::int64_t rows = static_cast<std::int64_t>(row_documents.shape(0));
        check(rows <= 65536, "a segment has at most 65,536 rows");
        check(static_cast<std::int64_t>(list_offsets.shape(0)) == lists + 1, "list offsets have another size");
        check(list_offsets.data()[0] == 0 && list_offsets.data()[lists] == count, "list offsets do not cover the mentions");
        check(static_cast<std::int64_t>(block_offsets.shape(0)) == lists + 1, "block offsets have another size");
        check(static_cast<std::int64_t>(list_norms.shape(0)) == lists, "list norms have another size");
        check(static_cast<std::int64_t>(block_norms.shape(0)) == block_offsets.data()[lists], "block norms have another size");
        for (std::int64_t i = 0; i < lists; ++i) {
            check(list_offsets.data()[i] <= list_offsets.data()[i + 1], "list offsets must not fall");
            const std::int64_t blocks = block_offsets.data()[i + 1] - block_offsets.data()[i];
            const std::int64_t size = list_offsets.data()[i + 1] - list_offsets.data()[i];
            check(blocks == 0 || blocks == (size + BLOCK - 1) / BLOCK, "a list has another number of blocks");
        }
        const Kind kind = kind_of(precision);
        view.list_ids = list_ids.data();
        view.list_offsets = list_offsets.data();
        view.lists = lists;
        view.mention_rows = mention_rows.data();
        view.mentions = vectors_of(mentions, mention_scales, count, n_t, kind);
        view.sentences = vectors_of(sentences, sentence_scales, rows, n_c, kind);
        view.row_documents = row_documents.data();
        view.rows = rows;
        view.list_norms = list_norms.data();
        view.block_offsets = block_offsets.data();
        view.block_norms = block_norms.data();
        check(!n_c || static_cast<std::int64_t>(sentence_norms.shape(0)) == (rows + BLOCK - 1) / BLOCK,
              "sentence norms have another size");
        view.sentence_norms = sentence_norms.data();
        if (n_c && sketches.shape(0)) {
            const int dim = std::min(n_c, MOST_AXES), quads = (dim + 3) / 4;
            const auto of_rows = [&](const Array<std::uint8_t> &array) { return static_cast<std::int64_t>(array.shape(0)) == rows; };
            check(static_cast<std::int64_t>(sketches.shape(0)) == (rows + LANES - 1) / LANES * quads * 64 && of_rows(sketch_scales) &&
                      of_rows(row_norms) && of_rows(tail_norms) &&
                      static_cast<std::int64_t>(sketch_axes.shape(0)) == static_cast<std::int64_t>(dim) * n_c,
                  "sketches have another size");
            view.sketches = {sketches.data(),     sketch_scales.data(), row_norms.data(), tail_norms.data(),
                          sketch_axes.data(), norm_step,          dim,              quads};
        }
    }
    SegmentView view;

    // A row that is out of range would write outside the scores: looked at once for each list that is read.
    void check_rows(std::int32_t list_id) {
        const std::int32_t *end = view.list_ids + view.lists;
        const std::int32_t *found = std::lower_bound(view.list_ids, end, list_id);
        if (found == end || *found != list_id) return;
        const std::size_t list = static_cast<std::size_t>(found - view.list_ids);
        if (checked_.empty()) checked_.assign(static_cast<std::size_t>(view.lists), 0);
        if (checked_[list]) return;
        std::uint16_t last = 0;
        for (std::int64_t i = view.list_offsets[list]; i < view.list_offsets[list + 1]; ++i) {
            check(view.mention_rows[i] >= last && view.mention_rows[i] < view.rows,
                  "rows of a list must not fall, and must be in the segment");
            last = view.mention_rows[i];
        }
        checked_[list] = 1;
    }

  private:
    Array<std::int32_t> keep_ids_;
    Array<std::int64_t> keep_offsets_;
    Array<std::uint16_t> keep_rows_;
    Array<std::int64_t> keep_documents_;
    Array<float> keep_list_norms_;
    Array<std::int64_t> keep_block_offsets_;
    Array<float> keep_block_norms_, keep_sentence_norms_, keep_axes_;
    std::vector<Array<std::uint8_t>> keep_;
    std::vector<std::uint8_t> checked_;  // only touched while Python holds its lock
};

// A query vector in 15 bits, v ~ code * scale: the same codes as quantise_queries of coil/lists/precision.py makes.
static QueryVector make_vector(const float *exact, int dim) {
    QueryVector q;
    const std::size_t padded = static_cast<std::size_t>((dim + 63) / 64 * 64);
    q.dim = dim;
    q.exact.assign(padded, 0.0f);
    q.codes.assign(padded, 0);
    q.high.assign(padded, 0);
    q.low.assign(padded, 0);
    float largest = 0.0f;
    for (int d = 0; d < dim; ++d) {
        check(std::isfinite(exact[d]), "a query vector holds NaN or infinity");
        largest = std::max(largest, std::abs(exact[d]));
    }
    q.scale = largest / QUERY_LEVELS;
    const float safe = q.scale > 0.0f ? q.scale : 1.0f;
    // Of both forms, exact and codes * scale, the longer one.
    double squares[2] = {}, error_squares = 0.0;
    for (int d = 0; d < dim; ++d) {
        const std::size_t at = static_cast<std::size_t>(d);
        const std::int16_t code = static_cast<std::int16_t>(std::clamp(std::nearbyint(exact[d] / safe), -QUERY_LEVELS, QUERY_LEVELS));
        q.exact[at] = exact[d];
        q.codes[at] = code;
        q.high[at] = static_cast<std::int8_t>(code >> 7);
        q.low[at] = static_cast<std::int8_t>(code & 127);
        q.code_sum += code;
        const double coded = static_cast<double>(code) * q.scale;
        squares[0] += static_cast<double>(exact[d]) * exact[d];
        squares[1] += coded * coded;
        error_squares += (exact[d] - coded) * (exact[d] - coded);
    }
    const auto length = [](double square) { return static_cast<float>(std::sqrt(square) * (1 + 1e-6)); };
    q.norm = length(std::max(squares[0], squares[1]));
    q.code_error = length(error_squares);
    return q;
}

// A query as the kernels want it: the list of each token, and its vector.
class NativeQuery {
  public:
    NativeQuery(Array<std::int32_t> lists, Matrix<float> vectors, Array<float> sentence, bool floor) {
        const std::size_t n = lists.shape(0), dim = vectors.shape(1);
        check(dim <= MOST_DIM && sentence.shape(0) <= MOST_DIM, "vectors are too wide for the kernels");
        check(vectors.shape(0) == n, "lists and vectors differ in number");
        query.floor = floor;
        for (std::size_t i = 0; i < n; ++i)
            query.tokens.push_back({lists.data()[i], make_vector(vectors.data() + i * dim, static_cast<int>(dim))});
        if (sentence.shape(0)) query.sentence = make_vector(sentence.data(), static_cast<int>(sentence.shape(0)));
    }
    Query query;
};

static bool has(const char *set) {
#if defined(COIL_X86)
    const std::string name = set;
    if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (name == "avx512")
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && has("avx2");
#else
    (void)set;
#endif
    return false;
}

// Names of the kernels that this processor can run, the best first.
static std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const char *name : {"avx512", "avx2"})
        if (has(name)) names.push_back(name);
    names.push_back("portable");
    return names;
}

static const Kernels &kernels_of(const std::string &name) {
    const std::vector<std::string> names = instruction_sets();
    check(std::find(names.begin(), names.end(), name) != names.end(), "this processor does not have that instruction set");
#if defined(COIL_X86)
    if (name == "avx512") return avx512_kernels();
    if (name == "avx2") return avx2_kernels();
#endif
    return portable_kernels();
}

static void check_query(const SegmentView &segment, const Query &query) {
    check(query.tokens.empty() || query.tokens[0].vector.dim == segment.mentions.dim, "token vectors differ in width");
    check(!query.sentence.dim || !segment.sentences.dim || query.sentence.dim == segment.sentences.dim,
          "sentence vectors differ in width");
}

template <class T>
static nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T> &&values) {
    auto *kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void *pointer) noexcept { delete static_cast<std::vector<T> *>(pointer); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

static nb::object search_segments(const std::string &instruction_set, const std::vector<Lists *> &segments,
                                  const std::vector<std::optional<Array<std::uint8_t>>> &masks,
                                  const std::vector<NativeQuery *> &queries, std::int64_t k, bool prune,
                                  bool without_zero, std::int64_t at_least, int threads, double seconds,
                                  std::int64_t range_rows) {
    check(range_rows > 0, "a range has at least one row");
    const Kernels &kernels = kernels_of(instruction_set);
    check(masks.size() == segments.size(), "one mask a segment");
    std::vector<const SegmentView *> views;
    std::vector<const std::uint8_t *> mask_data;
    std::vector<Query> asked;
    for (const NativeQuery *query : queries) asked.push_back(query->query);
    for (std::size_t s = 0; s < segments.size(); ++s) {
        check(!masks[s] || static_cast<std::int64_t>(masks[s]->shape(0)) == segments[s]->view.rows, "a mask has another size");
        views.push_back(&segments[s]->view);
        mask_data.push_back(masks[s] ? masks[s]->data() : nullptr);
        for (const Query &query : asked) {
            check_query(segments[s]->view, query);
            for (const QueryToken &token : query.tokens) segments[s]->check_rows(token.list);
        }
    }
    Options options;
    options.k = k;
    options.prune = prune;
    options.without_zero = without_zero;
    options.at_least = at_least;
    options.threads = threads;
    options.seconds = seconds;
    options.range_rows = range_rows;
    std::vector<Result> results;
    bool in_time = true;
    {
        nb::gil_scoped_release release;
        in_time = search(kernels, views, mask_data, asked, options, results);
    }
    if (!in_time) return nb::none();
    nb::list answers;
    for (Result &result : results) {
        std::vector<std::int64_t> scores, ordinals;
        std::vector<std::int32_t> of_segment, rows;
        for (const Found &found : result.found) {
            scores.push_back(found.score);
            ordinals.push_back(found.ordinal);
            of_segment.push_back(found.segment);
            rows.push_back(found.row);
        }
        const Stats &s = result.stats;
        answers.append(nb::make_tuple(to_numpy(std::move(scores)), to_numpy(std::move(ordinals)), to_numpy(std::move(of_segment)),
                                      to_numpy(std::move(rows)),
                                      nb::make_tuple(s.mentions_scored, s.mentions_skipped, s.sentences_scored,
                                                     s.sentences_skipped, s.sketches_scored)));
    }
    return answers;
}

static nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> score_segment(const std::string &instruction_set, Lists &segment,
                                                                       const NativeQuery &query) {
    const Kernels &kernels = kernels_of(instruction_set);
    check_query(segment.view, query.query);
    for (const QueryToken &token : query.query.tokens) segment.check_rows(token.list);
    std::vector<std::int64_t> scores(static_cast<std::size_t>(segment.view.rows));
    {
        nb::gil_scoped_release release;
        score_rows(kernels, segment.view, query.query, scores.data());
    }
    return to_numpy(std::move(scores));
}

// Seconds to read an array once with this many threads: what no search over as many bytes can beat.
static double read_seconds(Array<std::uint64_t> words, int threads) {
    const std::size_t n = words.shape(0);
    const std::uint64_t *data = words.data();
    std::atomic<std::uint64_t> sink{0};
    nb::gil_scoped_release release;
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::thread> readers;
    for (int t = 0; t < threads; ++t)
        readers.emplace_back([&, t] {
            const std::size_t from = n * static_cast<std::size_t>(t) / static_cast<std::size_t>(threads);
            const std::size_t to = n * static_cast<std::size_t>(t + 1) / static_cast<std::size_t>(threads);
            std::uint64_t sums[32] = {};
            std::size_t i = from;
            for (; i + 32 <= to; i += 32)
                for (int j = 0; j < 32; ++j) sums[j] += data[i + static_cast<std::size_t>(j)];
            std::uint64_t total = 0;
            for (const std::uint64_t sum : sums) total += sum;
            sink += total;
        });
    for (std::thread &reader : readers) reader.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

NB_MODULE(_native, m) {
    m.doc() = "Native loops of the search core.";
    for (int c = 0; c < 256; ++c) SCALES[c] = static_cast<float>(std::exp2((c - 160) / 8.0));
    nb::class_<Lists>(m, "Lists", "The arrays of a segment.")
        .def(nb::init<Array<std::int32_t>, Array<std::int64_t>, Array<std::uint16_t>, Array<std::uint8_t>,
                      std::optional<Array<std::uint8_t>>, int, Array<std::uint8_t>, std::optional<Array<std::uint8_t>>, int,
                      Array<std::int64_t>, Array<float>, Array<std::int64_t>, Array<float>, Array<float>,
                      Array<std::uint8_t>, Array<std::uint8_t>, Array<std::uint8_t>, Array<std::uint8_t>, Array<float>, float,
                      const std::string &>(),
             nb::arg("list_ids"), nb::arg("list_offsets"), nb::arg("mention_rows"), nb::arg("mentions"),
             nb::arg("mention_scales").none(), nb::arg("n_t"), nb::arg("sentences"), nb::arg("sentence_scales").none(),
             nb::arg("n_c"), nb::arg("row_documents"), nb::arg("list_norms"), nb::arg("block_offsets"),
             nb::arg("block_norms"), nb::arg("sentence_norms"), nb::arg("sketches"), nb::arg("sketch_scales"),
             nb::arg("row_norms"), nb::arg("tail_norms"), nb::arg("sketch_axes"), nb::arg("norm_step"), nb::arg("precision"));
    nb::class_<NativeQuery>(m, "Query", "A query's lists and vectors.")
        .def(nb::init<Array<std::int32_t>, Matrix<float>, Array<float>, bool>(), nb::arg("lists"), nb::arg("vectors"),
             nb::arg("sentence"), nb::arg("floor"));
    m.def("search", &search_segments, nb::arg("instruction_set"), nb::arg("segments"), nb::arg("masks"), nb::arg("queries"),
          nb::arg("k"), nb::arg("prune"), nb::arg("without_zero"), nb::arg("at_least"), nb::arg("threads"),
          nb::arg("seconds"), nb::arg("range_rows") = 16384,
          "The k best of each query: scores, ordinals, segments, rows and counts; None if time ran out.");
    m.def("score_segment", &score_segment, nb::arg("instruction_set"), nb::arg("segment"), nb::arg("query"),
          "The score of every row, in multiples of 2^-32.");
    m.def("instruction_sets", &instruction_sets, "Kernels that this processor can run, the best first.");
    m.def("read_seconds", &read_seconds, nb::arg("words"), nb::arg("threads"), "Seconds to read an array once.");
}
