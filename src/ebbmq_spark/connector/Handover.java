/*
 * What becomes of scans of the source `ebbmq` before Spark plans a query: see handover.py.
 *
 * This text is compiled in the driver by the compiler that Spark has for the code it makes. That
 * one knows no lambdas, and of generics only the syntax.
 */

package ebbmq;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeMap;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
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
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/** The rule, for one query. */
public final class Handover extends Rule {
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
        found = answer == null ? null : new NamedFiles(json.readTree((String) answer));
      } catch (Exception error) {
        log().warn("rows of a lake go through Python, as its files could not be asked for", error);
      }
      known.put(question, found);
    }
    return (NamedFiles) known.get(question);
  }

  private LogicalPlan natively(
      LogicalPlan plan, DataSourceV2Relation scan, NamedFiles found, AttributeSet wanted) {
    HadoopFsRelation relation =
        new HadoopFsRelation(
            found,
            new StructType(),
            scan.schema().asNullable(),
            Option.empty(),
            new ParquetFileFormat(),
            scala.collection.immutable.Map$.MODULE$.empty(),
            session);
    LogicalRelation read =
        org.apache.spark.sql.execution.datasources.LogicalRelation$.MODULE$.apply(relation, false);
    List pairs = new ArrayList();
    List columns = new ArrayList();
    for (int at = 0; at < scan.output().size(); at++) {
      Attribute column = (Attribute) scan.output().apply(at);
      Attribute stored = (Attribute) read.output().apply(at);
      pairs.add(new Tuple2(column, stored));
      if (wanted.contains(column)) {
        columns.add(named(column, stored));
      }
    }
    LogicalPlan below = read;
    if (plan instanceof Filter) {
      AttributeMap renamed =
          org.apache.spark.sql.catalyst.expressions.AttributeMap$.MODULE$.apply(seq(pairs));
      // Filters go to Spark's reader as they are: nothing may be between the two.
      below = (LogicalPlan) new Filter(((Filter) plan).condition(), read).rewriteAttrs(renamed);
    }
    return new Project(seq(columns), below);
  }

  /** What was read, under the name of the plan; a value that has to be there is looked for. */
  private static Alias named(Attribute column, Attribute stored) {
    Expression value = stored;
    if (!column.nullable()) {
      List where = new ArrayList();
      where.add("column " + column.name() + " of a file of the lake");
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

/** Files by name and size, and no others. */
final class NamedFiles implements FileIndex {
  private final FileStatus[] files;

  NamedFiles(JsonNode named) {
    files = new FileStatus[named.size()];
    for (int at = 0; at < files.length; at++) {
      JsonNode each = (JsonNode) named.get(at);
      // Where no scheme is given, Hadoop may take another one for granted.
      Path path = new Path("file", null, ((JsonNode) each.get(0)).asText());
      files[at] = new FileStatus(((JsonNode) each.get(1)).asLong(), false, 1, 0, 0, path);
    }
  }

  public Seq rootPaths() {
    List paths = new ArrayList();
    for (int at = 0; at < files.length; at++) {
      paths.add(files[at].getPath());
    }
    return Handover.seq(paths);
  }

  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    List all = new ArrayList();
    all.add(
        org.apache.spark.sql.execution.datasources.PartitionDirectory$.MODULE$.apply(
            org.apache.spark.sql.catalyst.InternalRow$.MODULE$.empty(), files));
    return Handover.seq(all);
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
    return new StructType();
  }

  /** Spark does the same work once: the same files, whichever scan asked for them. */
  public boolean equals(Object other) {
    return other instanceof NamedFiles && Arrays.equals(files, ((NamedFiles) other).files);
  }

  public int hashCode() {
    return Arrays.hashCode(files);
  }
}
