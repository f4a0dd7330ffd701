package comap;

import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Set;
import scienceworld.input.InputParser;
import scienceworld.input.InputParser$;
import scienceworld.objects.agent.Agent;
import scienceworld.objects.portal.Portal;
import scienceworld.struct.EnvObject;
import scienceworld.tasks.goals.GoalSequence;
import scienceworld.tasks.goals.ObjMonitor;

/**
 * The names of things, made once.
 *
 * <p>"X", "X in Y" and "X on Y" depend on nothing but what X and Y are called by themselves, and in
 * which order; so they are kept by that. They are all in lower case. What a thing is called may change
 * with each action, but not while one command is read.
 */
@SuppressWarnings({"rawtypes", "unchecked"})
public final class Names {
    private static final int MOST = 1 << 11;  // there are some 300 things, with a few states each
    private static final int CHOICES = 20;
    private static final int CHOICES_IN_TURN = 10;
    private static final Comparator<Tuple2> BY_NAME =
            (one, other) -> ((String) one._1()).compareTo((String) other._1());

    private static final HashMap<Called, Names> made = new HashMap<>();
    private static final HashMap<String, Name> interned = new HashMap<>();
    private static final EnvObject[] read = new EnvObject[MOST];  // the things of this command
    private static final String[][] texts = new String[MOST][];  // and their names

    private final Set<String> set;
    private String[] tokenized;
    private Name[] sorted;

    private Names(Set<String> set) {
        this.set = set;
    }

    /** Goes before {@code EnvObject.getReferentsWithContainers}. */
    public static Set withContainers(EnvObject thing, EnvObject from) {
        return of(thing, from).set;
    }

    /** Goes before {@code InputParser.getObjectReferents}; only read by those who get it. */
    public static String[] tokenized(InputParser$ parser, EnvObject thing, EnvObject from) {
        int place = (int) thing.uuid() & (MOST - 1);
        if (read[place] != thing) {
            Names names = of(thing, from);
            if (names.tokenized == null) {
                names.tokenized = parser.comap$getObjectReferents(thing, from);
            }
            texts[place] = names.tokenized;
            read[place] = thing;
        }
        return texts[place];
    }

    /** Goes before {@code InputParser.getPossibleReferents}, which lists what is only printed. */
    public static String[] possible(InputParser$ parser, EnvObject thing, EnvObject from) {
        return new String[0];
    }

    /** Goes before {@code InputParser.parse}: things are called otherwise than in the last command. */
    public static scala.Tuple4 parse(
            InputParser parser, String text, EnvObject root, EnvObject universe, Agent agent,
            ObjMonitor monitor, GoalSequence goals, EnvObject from) {
        Arrays.fill(read, null);
        if (made.size() > MOST) {
            made.clear();
            interned.clear();
        }
        return parser.comap$parse(text, root, universe, agent, monitor, goals, from);
    }

    /** Goes before {@code InputParser.getAllUniqueReferentsObjList}. */
    public static Tuple2[] unique(
            InputParser parser, EnvObject[] things, EnvObject from, boolean hidden, boolean deep) {
        Name[][] names = new Name[things.length][];
        for (int i = 0; i < things.length; i++) {
            names[i] = of(things[i], from).sorted();
        }
        String[] chosen = chosen(withoutDuplicates(names));
        Tuple2[] out = new Tuple2[things.length];
        for (int i = 0; i < things.length; i++) {
            out[i] = new Tuple2(chosen[i].toLowerCase(), things[i]);
        }
        Arrays.sort(out, BY_NAME);
        return out;
    }

    private static Names of(EnvObject thing, EnvObject from) {
        Set<String> own =
                thing instanceof Portal ? ((Portal) thing).getReferents(from) : thing.getReferents();
        Option<EnvObject> container = thing.getContainer();
        Set<String> around = container.isDefined() ? container.get().getReferents() : null;
        Called called = new Called(own, around);
        Names names = made.get(called);
        if (names == null) {
            names = new Names(thing.comap$getReferentsWithContainers(from));
            made.put(called, names);
        }
        return names;
    }

    private Name[] sorted() {
        if (sorted == null) {
            String[] all = new String[set.size()];
            int found = 0;
            for (Iterator<String> left = set.iterator(); left.hasNext(); ) {
                all[found++] = left.next();
            }
            Arrays.sort(all);
            sorted = new Name[found];
            for (int i = 0; i < found; i++) {
                sorted[i] = interned.computeIfAbsent(all[i], Name::new);
            }
        }
        return sorted;
    }

    /** Returns the names of each thing that no other one has; all of them where there are none. */
    private static Name[][] withoutDuplicates(Name[][] names) {
        for (Name[] some : names) {
            for (Name name : some) {
                name.number = 0;
            }
        }
        for (Name[] some : names) {
            for (Name name : some) {
                name.number++;
            }
        }
        Name[][] out = new Name[names.length][];
        for (int i = 0; i < names.length; i++) {
            Name[] some = new Name[names[i].length];
            int found = 0;
            for (Name name : names[i]) {
                if (name.number <= 1) {
                    some[found++] = name;
                }
            }
            out[i] = found == 0 ? names[i] : Arrays.copyOf(some, found);
        }
        return out;
    }

    /**
     * Returns a name for each thing: the first, or, while another one has it as well, some other. The
     * simulator goes on to the last round where there is nothing more to be done.
     */
    private static String[] chosen(Name[][] names) {
        int[] choice = new int[names.length];
        boolean again = true;
        for (int round = 0; round < CHOICES && again; round++) {
            for (int i = 0; i < names.length; i++) {
                names[i][choice[i]].number = 0;
            }
            for (int i = 0; i < names.length; i++) {
                names[i][choice[i]].number++;
            }
            again = false;
            for (int i = 0; i < names.length; i++) {
                if (names[i][choice[i]].number > 1) {
                    again = true;
                    choice[i] = round < CHOICES_IN_TURN
                            ? (choice[i] + 1) % names[i].length
                            : scala.util.Random$.MODULE$.nextInt(names[i].length);
                }
            }
        }
        String[] out = new String[names.length];
        for (int i = 0; i < names.length; i++) {
            out[i] = names[i][choice[i]].text;
        }
        return out;
    }

    /** One text, and how often it was met. */
    private static final class Name {
        final String text;
        int number;

        Name(String text) {
            this.text = text;
        }
    }

    /** What a thing is called, and what it is in. */
    private static final class Called {
        private final String[] texts;
        private final int digest;

        Called(Set<String> own, Set<String> container) {
            int size = own.size();
            texts = new String[size + 1 + (container == null ? 0 : container.size())];
            put(own, 0);
            if (container != null) {
                put(container, size + 1);
            }
            digest = Arrays.hashCode(texts);
        }

        private void put(Set<String> names, int at) {
            for (Iterator<String> left = names.iterator(); left.hasNext(); ) {
                texts[at++] = left.next();
            }
        }

        @Override
        public int hashCode() {
            return digest;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Called && Arrays.equals(texts, ((Called) other).texts);
        }
    }
}
