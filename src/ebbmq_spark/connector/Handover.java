/*
 * What becomes of scans of the source `ebbmq` before Spark plans a query: see handover.py.
 *
 * This text is compiled in the driver by the compiler that Spark has for the code it makes. That
 * one knows no lambdas, and of generics only the syntax.
 */

package ebbmq;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeMap;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.BitwiseAnd;
import org.apache.spark.sql.catalyst.expressions.BitwiseGet;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GetArrayItem;
import org.apache.spark.sql.catalyst.expressions.InterpretedPredicate;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.ShiftRight;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Function1;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/** The rule, for one query. */
public final class Handover extends Rule {
  private static final String UNASKED =
      "rows go through Python, as their files could not be asked for";

  private final SparkSession session;
  private final String source;
  private final String token;
  private final Function files;
  private final Sources sources;
  /** Two scans of a table in one query are of the same files, but for subqueries. */
  private final Map known = new HashMap();

  Handover(SparkSession session, EachQuery asked) {
    this.session = session;
    this.source = asked.source;
    this.token = asked.token;
    this.files = asked.files;
    this.sources = asked.sources;
  }

  /** Each source has a rule of its own. */
  public String ruleName() {
    return "ebbmq.Handover." + source;
  }

  public TreeNode apply(TreeNode plan) {
    return ((LogicalPlan) plan).transformDown(new Scans(this));
  }

  /** The scan that a plan does nothing but filter; null if it is not such a plan. */
  DataSourceV2Relation scanOf(Object plan) {
    Object below = plan instanceof Filter ? ((Filter) plan).child() : plan;
    if (!(below instanceof DataSourceV2Relation)) {
      return null;
    }
    DataSourceV2Relation scan = (DataSourceV2Relation) below;
    boolean ours = scan.table() instanceof PythonTable && scan.table().name().equals(source);
    return ours ? scan : null;
  }

  /** The columns of a scan that are wanted, maybe filtered, read by Spark itself or else anew. */
  LogicalPlan read(LogicalPlan plan, AttributeSet wanted) {
    DataSourceV2Relation scan = scanOf(plan);
    NamedFiles found = filesOf(scan);
    return found == null ? anew(plan, scan) : natively(plan, scan, found, wanted);
  }

  private NamedFiles filesOf(DataSourceV2Relation scan) {
    ObjectMapper json = new ObjectMapper();
    ObjectNode asked = json.createObjectNode();
    asked.set("options", json.valueToTree(scan.options().asCaseSensitiveMap()));
    asked.put("schema", scan.schema().json());
    asked.put("token", token);
    asked.put("directory", System.getProperty("user.dir"));
    String question = asked.toString();
    if (!known.containsKey(question)) {
      NamedFiles found = null;
      try {
        Object answer = files.apply(question);
        if (answer != null) {
          NamedFiles named = new NamedFiles(json.readTree((String) answer), scan.schema());
          named.tryOne(session);
          found = named;
        }
      } catch (Exception error) {
        log().warn(UNASKED, error);
        tell(error);
      }
      known.put(question, found);
    }
    return (NamedFiles) known.get(question);
  }

  /** Has Python say it, too: who opened the session may see nothing of the log of Java. */
  private void tell(Exception error) {
    ObjectNode told = new ObjectMapper().createObjectNode();
    told.put("token", token);
    told.put("failed", error.toString());
    try {
      files.apply(told.toString());
    } catch (RuntimeException unheard) {
      log().error(UNASKED, unheard);
    }
  }

  private LogicalPlan natively(
      LogicalPlan plan, DataSourceV2Relation scan, NamedFiles found, AttributeSet wanted) {
    HadoopFsRelation relation =
        new HadoopFsRelation(
            found,
            found.partitionSchema(),
            found.stored(),
            Option.empty(),
            new ParquetFileFormat(),
            found.options(),
            session);
    LogicalRelation read =
        org.apache.spark.sql.execution.datasources.LogicalRelation$.MODULE$.apply(relation, false);
    // Spark has columns that it is told of behind those that are in the files.
    Map byName = new HashMap();
    for (int at = 0; at < read.output().size(); at++) {
      Attribute stored = (Attribute) read.output().apply(at);
      byName.put(stored.name(), stored);
    }
    List pairs = new ArrayList();
    List columns = new ArrayList();
    for (int at = 0; at < scan.output().size(); at++) {
      Attribute column = (Attribute) scan.output().apply(at);
      Attribute stored = (Attribute) byName.get(column.name());
      pairs.add(new Tuple2(column, stored));
      if (wanted.contains(column)) {
        columns.add(named(column, stored));
      }
    }
    LogicalPlan below = read;
    if (found.hasDead()) {
      // The filter of the query comes after it: of a dead row nothing is asked.
      below = new Filter(found.alive(byName), below);
    }
    if (plan instanceof Filter) {
      AttributeMap renamed =
          org.apache.spark.sql.catalyst.expressions.AttributeMap$.MODULE$.apply(seq(pairs));
      // Filters go to Spark's reader as they are: nothing else may be between the two.
      below = (LogicalPlan) new Filter(((Filter) plan).condition(), below).rewriteAttrs(renamed);
    }
    return new Project(seq(columns), below);
  }

  /** What was read, under the name of the plan; a value that has to be there is looked for. */
  private static Alias named(Attribute column, Attribute stored) {
    Expression value = stored;
    if (!column.nullable()) {
      List where = new ArrayList();
      where.add("column " + column.name() + " of a file");
      value = new AssertNotNull(stored, seq(where));
    }
    return new Alias(
        value,
        column.name(),
        column.exprId(),
        column.qualifier(),
        Option.empty(),
        seq(new ArrayList()));
  }

  /** The scan with a source of its own. */
  private LogicalPlan anew(LogicalPlan plan, DataSourceV2Relation scan) {
    String name = scan.table().name();
    PythonDataSourceV2 source = new SourceOfOneQuery(sources.of(scan.table()));
    LogicalPlan read =
        scan.copy(
            new PythonTable(source, name, scan.table().schema()),
            scan.output(),
            scan.catalog(),
            scan.identifier(),
            scan.options(),
            scan.timeTravelSpec());
    return plan instanceof Filter ? new Filter(((Filter) plan).condition(), read) : read;
  }

  static Seq seq(List list) {
    return CollectionConverters.asScala(list).toSeq();
  }

  /** Makes the rule for each query of a session and of those that come from it. */
  public static final class EachQuery extends AbstractFunction1 {
    private final Sources sources;
    private String source;
    private String token;
    private Function files;

    public EachQuery() throws NoSuchFieldException {
      sources = new Sources();
    }

    /** Scans of which source, and who says which files they are, if told the token. */
    public void ask(String source, String token, Function files) {
      this.source = source;
      this.token = token;
      this.files = files;
    }

    public Object apply(Object session) {
      return new Handover((SparkSession) session, this);
    }
  }
}

/** Scans with what is directly above them. */
final class Scans extends AbstractPartialFunction {
  private final Handover rule;

  Scans(Handover rule) {
    this.rule = rule;
  }

  public boolean isDefinedAt(Object plan) {
    return rule.scanOf(plan instanceof Project ? ((Project) plan).child() : plan) != null;
  }

  public Object applyOrElse(Object plan, Function1 otherwise) {
    if (!isDefinedAt(plan)) {
      return otherwise.apply(plan);
    }
    if (plan instanceof Project) {
      Project chosen = (Project) plan;
      return new Project(chosen.projectList(), rule.read(chosen.child(), chosen.references()));
    }
    LogicalPlan whole = (LogicalPlan) plan;
    return rule.read(whole, whole.outputSet());
  }
}

/** The sources of tables, which Spark keeps to itself. */
final class Sources {
  private final Field field;

  Sources() throws NoSuchFieldException {
    field = PythonTable.class.getDeclaredField("ds");
    field.setAccessible(true);
  }

  PythonDataSourceV2 of(Table table) {
    try {
      return (PythonDataSourceV2) field.get(table);
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }
}

/**
 * A source that answers one query: in Spark 4.2 all queries on a DataFrame share the partitions and
 * the filters that one of them was answered with.
 */
final class SourceOfOneQuery extends PythonDataSourceV2 {
  private final PythonDataSourceV2 shared;

  SourceOfOneQuery(PythonDataSourceV2 shared) {
    this.shared = shared;
  }

  public UserDefinedPythonDataSource source() {
    return shared.source();
  }

  /** Made from options, and so the same for all. */
  public PythonDataSourceCreationResult getOrCreateDataSourceInPython(
      String name, CaseInsensitiveStringMap options, Option schema) {
    return shared.getOrCreateDataSourceInPython(name, options, schema);
  }
}

/**
 * Files by name and size, and no others; what is told of each are columns of all its rows. Objects
 * of a store are files of ObjectFiles.java: their URLs go with the options of the relation, which
 * no text of a plan has in it.
 *
 * Which rows of a file are dead is such a column, too, a bit for each row. Plans take no class of
 * ours to executors, so that expressions of Spark look at it.
 */
final class NamedFiles implements FileIndex {
  private static final String DEAD = "_ebbmq_dead";
  /** A column that Spark's reader fills: which row of its file a row is. */
  private static final String NUMBER =
      org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat$.MODULE$
          .ROW_INDEX_TEMPORARY_COLUMN_NAME();
  private static final int WORD_BITS = 64;
  private static final int WORD_SHIFT = 6;
  private static final String OBJECT = "ebbmq-object";

  private final FileStatus[] files;
  private final Map options = new HashMap();
  private final InternalRow[] values;
  private final StructType told;
  private final StructType stored;
  private final boolean hasDead;

  NamedFiles(JsonNode named, StructType asked) throws IOException {
    hasDead = !named.findValues("dead").isEmpty();
    StructType inside = new StructType();
    StructType beside = new StructType();
    StructField[] fields = asked.asNullable().fields();
    for (int at = 0; at < fields.length; at++) {
      if (named.size() > 0 && in(in(named, 0), "told").has(fields[at].name())) {
        beside = beside.add(fields[at]);
      } else {
        inside = inside.add(fields[at]);
      }
    }
    told = hasDead ? beside.add(DEAD, new ArrayType(DataTypes.LongType, false)) : beside;
    stored = hasDead ? inside.add(NUMBER, DataTypes.LongType) : inside;
    files = new FileStatus[named.size()];
    values = new InternalRow[named.size()];
    ArrayNode objects = new ObjectMapper().createArrayNode();
    for (int at = 0; at < files.length; at++) {
      JsonNode each = in(named, at);
      // Where no scheme is given, Hadoop may take another one for granted.
      String scheme = each.has("url") ? OBJECT : "file";
      Path path = new Path(scheme, null, in(each, "path").asText());
      files[at] = new FileStatus(in(each, "size_bytes").asLong(), false, 1, 0, 0, path);
      values[at] = valuesOf(each, beside);
      if (each.has("url")) {
        ArrayNode object = objects.addArray();
        object.add(path.toUri().getPath()).add(files[at].getLen());
        object.add(in(each, "tag").isMissingNode() ? null : in(each, "tag").asText());
        object.add(in(each, "url").asText());
      }
    }
    if (objects.size() > 0) {
      options.put("ebbmq.object.urls", objects.toString());
    }
  }

  /** What goes with the configuration of Hadoop to those who read. */
  scala.collection.immutable.Map options() {
    return (scala.collection.immutable.Map)
        scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(options));
  }

  /** Has the driver read the end of the first object, as an executor would. */
  void tryOne(SparkSession session) throws IOException {
    if (options.isEmpty()) {
      return;
    }
    Configuration asked = session.sessionState().newHadoopConfWithOptions(options());
    asked.setInt("ebbmq.object.tries", 1);
    FSDataInputStream opened = files[0].getPath().getFileSystem(asked).open(files[0].getPath());
    try {
      opened.seek(Math.max(0, files[0].getLen() - 1));
      opened.read();
    } finally {
      opened.close();
    }
  }

  private static JsonNode in(JsonNode list, int at) {
    return (JsonNode) list.get(at);
  }

  /** What has a name in an object, or a node that has nothing. */
  private static JsonNode in(JsonNode object, String name) {
    return (JsonNode) object.path(name);
  }

  private InternalRow valuesOf(JsonNode file, StructType beside) throws IOException {
    Object[] row = new Object[told.length()];
    StructField[] fields = beside.fields();
    for (int at = 0; at < fields.length; at++) {
      row[at] = valueOf(in(in(file, "told"), fields[at].name()), fields[at].dataType());
    }
    if (file.has("dead")) {
      ByteBuffer bits = ByteBuffer.wrap(in(file, "dead").binaryValue());
      long[] words = new long[bits.capacity() / Long.BYTES];
      bits.order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().get(words);
      row[fields.length] = UnsafeArrayData.fromPrimitiveArray(words);
    }
    return new GenericInternalRow(row);
  }

  private static Object valueOf(JsonNode value, DataType type) {
    if (type instanceof StringType) {
      return UTF8String.fromString(value.asText());
    }
    if (type instanceof LongType) {
      return Long.valueOf(value.bigIntegerValue().longValueExact());
    }
    throw new IllegalArgumentException("a column of " + type + " cannot be told");
  }

  /** The columns that are in the files. */
  StructType stored() {
    return stored;
  }

  /** Whether rows of any file are dead. */
  boolean hasDead() {
    return hasDead;
  }

  /** That a row is not dead, by columns of these names. */
  Expression alive(Map columns) {
    Attribute dead = (Attribute) columns.get(DEAD);
    // Without a number nobody knows what is dead: rather an error than wrong rows.
    List where = new ArrayList();
    where.add("the number of a row in its file");
    Expression number = new AssertNotNull((Attribute) columns.get(NUMBER), Handover.seq(where));
    Expression word =
        new GetArrayItem(dead, new ShiftRight(number, literal(Integer.valueOf(WORD_SHIFT))), true);
    Expression bit =
        org.apache.spark.sql.catalyst.expressions.Cast$.MODULE$.apply(
            new BitwiseAnd(number, literal(Long.valueOf(WORD_BITS - 1))),
            DataTypes.IntegerType,
            false);
    Expression isAlive = new EqualTo(new BitwiseGet(word, bit), literal(Byte.valueOf((byte) 0)));
    return new Or(new IsNull(dead), isAlive);
  }

  private static Expression literal(Object value) {
    return org.apache.spark.sql.catalyst.expressions.Literal$.MODULE$.apply(value);
  }

  public Seq rootPaths() {
    List paths = new ArrayList();
    for (int at = 0; at < files.length; at++) {
      paths.add(files[at].getPath());
    }
    return Handover.seq(paths);
  }

  /** The files that may have rows: Spark does not look at filters of what is told again. */
  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    InterpretedPredicate[] conditions = new InterpretedPredicate[partitionFilters.size()];
    for (int at = 0; at < conditions.length; at++) {
      Expression filter = (Expression) partitionFilters.apply(at);
      conditions[at] = new InterpretedPredicate((Expression) filter.transform(new Told(told)));
    }
    List found = new ArrayList();
    for (int at = 0; at < files.length; at++) {
      if (areMet(conditions, values[at])) {
        FileStatus[] one = {files[at]};
        found.add(
            org.apache.spark.sql.execution.datasources.PartitionDirectory$.MODULE$.apply(
                values[at], one));
      }
    }
    return Handover.seq(found);
  }

  private static boolean areMet(InterpretedPredicate[] conditions, InternalRow row) {
    for (int at = 0; at < conditions.length; at++) {
      if (!conditions[at].eval(row)) {
        return false;
      }
    }
    return true;
  }

  public String[] inputFiles() {
    String[] names = new String[files.length];
    for (int at = 0; at < names.length; at++) {
      names[at] = files[at].getPath().toUri().toString();
    }
    return names;
  }

  public long sizeInBytes() {
    long size = 0;
    for (int at = 0; at < files.length; at++) {
      size += files[at].getLen();
    }
    return size;
  }

  public void refresh() {}

  public StructType partitionSchema() {
    return told;
  }

  /** Spark does the same work once: the same files, whichever scan asked for them. */
  public boolean equals(Object other) {
    return other instanceof NamedFiles
        && Arrays.equals(files, ((NamedFiles) other).files)
        && Arrays.equals(values, ((NamedFiles) other).values);
  }

  public int hashCode() {
    return Arrays.hashCode(files);
  }
}

/** Columns that are told of a file, by where they are in the row of them. */
final class Told extends AbstractPartialFunction {
  private final StructType columns;

  Told(StructType columns) {
    this.columns = columns;
  }

  public boolean isDefinedAt(Object expression) {
    return expression instanceof Attribute;
  }

  public Object applyOrElse(Object expression, Function1 otherwise) {
    if (!isDefinedAt(expression)) {
      return otherwise.apply(expression);
    }
    int at = columns.fieldIndex(((Attribute) expression).name());
    return new BoundReference(at, columns.apply(at).dataType(), true);
  }
}
